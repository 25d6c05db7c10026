"""Times of the page of a connection, in the zone of the person's browser, which they name."""

from __future__ import annotations

import datetime as dt

from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from shop_connections.services import ShopRefusal

#: The form of `datetime-local`.
MINUTE = "%Y-%m-%dT%H:%M"


def write_time(at: dt.datetime) -> str:
    return f"{timezone.localtime(at):%Y-%m-%d %H:%M} ({timezone.get_current_timezone_name()})"


def say_time(at: dt.datetime | None) -> SafeString | str:
    """Return a time for the page, or ""."""
    if at is None:
        return ""
    return format_html('<time datetime="{}">{}</time>', at.isoformat(timespec="seconds"), write_time(at))


def read_time(text: str) -> dt.datetime | None:
    """Return the time of a form, or None if it is empty. Raise `ShopRefusal`."""
    if not text:
        return None
    try:
        local = dt.datetime.strptime(text, MINUTE)
        at = timezone.make_aware(local)
        is_real = timezone.localtime(at.astimezone(dt.UTC)).replace(tzinfo=None) == local
    except (ValueError, OverflowError) as error:
        raise ShopRefusal("The time must be like 2026-12-01T09:30.") from error
    if not is_real:
        raise ShopRefusal("This time does not exist: clocks are put forward then. Choose another.")
    return at
