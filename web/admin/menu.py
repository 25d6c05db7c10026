"""A link in the admin's menu."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class MenuItem:
    """`place` orders the links. `name` is the URL's name in the namespace `admin`."""

    place: int
    title: str
    name: str = ""
