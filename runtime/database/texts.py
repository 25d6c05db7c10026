"""Texts of others, such as a provider's or a broker's errors, in the form that PostgreSQL stores. Pure."""

from __future__ import annotations


def make_storable(text: str) -> str:
    """Return a text without NUL and with `?` for each lone surrogate, because PostgreSQL stores neither."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "")
