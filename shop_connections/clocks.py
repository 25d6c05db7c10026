"""The distance of a shop's clock from ours, by when its posts came and when it saved their orders.

A post can come late, and never early. So of the last posts' differences the smallest are near the truth; the
third smallest, because one wrong date must move no shop.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from shop_connections.models import ConnectionPost, ShopConnection

#: The posts that are looked at, and the largest difference that a clock with a wrong zone can have.
_LAST, _MOST = 50, dt.timedelta(hours=26)
#: A smaller difference is the time that a post takes to come.
LEAST = dt.timedelta(minutes=2)


def clock_offset(shop: ShopConnection, *, also: ConnectionPost | None = None) -> dt.timedelta:
    """Return what to add to a shop's times to have ours, by its last posts and a new one."""
    rows = ConnectionPost.objects.filter(source=shop.source, done_at__isnull=False)
    rows = rows.exclude(modified_at=None).exclude(address__in=shop.copies)
    read = rows.order_by("-done_at").values_list("order_id", "received_at", "modified_at")
    posts = [*read[:_LAST]]
    if also is not None:
        posts.append((also.order_id, also.received_at, also.modified_at))
    return find_offset((id, at - saved_at) for id, at, saved_at in posts if saved_at is not None)


def describe_clock(offset: dt.timedelta) -> str:
    """Say in words how far a shop's clock is from ours, or "" if it is right.

    >>> describe_clock(dt.timedelta(hours=-3, minutes=-30)), describe_clock(dt.timedelta(minutes=3))
    ('3 h 30 min ahead', '3 min behind')
    """
    hours, minutes = divmod(round(abs(offset).total_seconds() / 60), 60)
    words = " ".join(f"{count} {unit}" for count, unit in ((hours, "h"), (minutes, "min")) if count)
    return f"{words} {'behind' if offset > dt.timedelta() else 'ahead'}" if words else ""


def find_offset(differences: Iterable[tuple[object, dt.timedelta]]) -> dt.timedelta:
    """Return the offset by the differences of orders' posts, or 0 if it is small.

    >>> hours = [dt.timedelta(hours=hours) for hours in (-4, -3, -3, 500)]
    >>> find_offset(enumerate(hours)).total_seconds() / 3600
    -3.0
    """
    smallest: dict[object, dt.timedelta] = {}
    for id, difference in differences:
        if abs(difference) <= _MOST:
            smallest[id] = min(difference, smallest.get(id, difference))
    ordered = sorted(smallest.values())
    if not ordered:
        return dt.timedelta()
    offset = ordered[2] if len(ordered) >= 3 else ordered[0]
    return offset if abs(offset) > LEAST else dt.timedelta()
