"""Links of the admin's menu, and pages that belong to no table. `operations.site` shows them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse

#: The groups of the menu, by the place of their first link. Daily work is first.
GROUPS = {0: "Daily work", 30: "Content", 50: "Operation", 80: "Administration"}


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class MenuItem:
    """`place` orders the links and decides their groups. `name` is the URL's in the namespace `admin`."""

    place: int
    title: str
    name: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page at `route` below the admin's address. `view` checks the user's rights.

    `may_view` says whether the user gets a link.
    """

    route: str
    menu: MenuItem
    may_view: Callable[[HttpRequest], bool]
    view: Callable[[AdminSite, HttpRequest], HttpResponse]
