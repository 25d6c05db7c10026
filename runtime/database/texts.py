"""Texts of others, such as a provider's or a broker's errors, in the form that PostgreSQL stores."""

from __future__ import annotations


def make_storable(text: str) -> str:
    """Return a text without NUL and with `?` for each lone surrogate, which PostgreSQL cannot store."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "")
