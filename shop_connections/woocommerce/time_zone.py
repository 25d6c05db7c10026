"""Read the time zone of an order's day in a shop of WooCommerce."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

_FURTHEST = dt.timedelta(hours=14)


def read_time_zone(document: Mapping[str, Any]) -> str:
    """Return the offset of the shop's clock when the order was placed, or "" if the document does not say it.

    `date_created` is by the shop's clock, and `date_created_gmt` is the same moment in UTC.

    >>> read_time_zone({"date_created": "2026-11-27T20:30:00", "date_created_gmt": "2026-11-28T04:30:00"})
    '-08:00'
    """
    local, utc = _time(document.get("date_created")), _time(document.get("date_created_gmt"))
    if local is None or utc is None or local.tzinfo or utc.tzinfo:
        return ""
    offset = local - utc
    if abs(offset) > _FURTHEST or offset % dt.timedelta(minutes=1):
        return ""
    return dt.datetime(2026, 1, 1, tzinfo=dt.timezone(offset)).isoformat()[-6:]


def _time(value: object) -> dt.datetime | None:
    try:
        return dt.datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
