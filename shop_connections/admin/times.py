"""Times of the page of a connection, in the zone of the shop's profile, or else in that of the browser."""

from __future__ import annotations

import datetime as dt

from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from notifications.content.time_zones import find_zone
from shop_connections.services import ShopRefusal

#: The form of `datetime-local`.
MINUTE = "%Y-%m-%dT%H:%M"


def write_time(at: dt.datetime, zone: str) -> str:
    """Write a time in a zone, or else in UTC, and name it."""
    known = find_zone(zone)
    return f"{at.astimezone(known or dt.UTC):%Y-%m-%d %H:%M} {f'({zone})' if known else 'UTC'}"


def say_time(at: dt.datetime | None, zone: str) -> SafeString | str:
    """Return a time for the page. Without a zone, its script writes it in that of the browser."""
    if at is None:
        return ""
    is_local = mark_safe(" data-local") if not zone else ""
    return format_html(
        '<time datetime="{}"{}>{}</time>', at.isoformat(timespec="seconds"), is_local, write_time(at, zone)
    )


def read_time(text: str, zone: str) -> dt.datetime | None:
    """Return the time that a form has in a zone, or None if it is empty. Raise `ShopRefusal`."""
    if not text:
        return None
    known = find_zone(zone or "UTC")
    if known is None:
        raise ShopRefusal("The browser names a time zone that is unknown here. Enter one in the profile.")
    try:
        at = dt.datetime.strptime(text, MINUTE).replace(tzinfo=known)
    except ValueError as error:
        raise ShopRefusal("The time must be like 2026-12-01T09:30.") from error
    if at.astimezone(dt.UTC).astimezone(known).replace(tzinfo=None) != at.replace(tzinfo=None):
        raise ShopRefusal("This time does not exist: clocks are put forward then. Choose another.")
    return at.astimezone(dt.UTC)
