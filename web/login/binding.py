"""Binds a user to shops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def bind(user: Any, shops: Sequence[str]) -> None:
    """Replace the shops of a user by these words."""
