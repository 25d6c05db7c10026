"""Periods as ranges of ids, which contain the time, or of a time with an index.

Ranges of ids prune partitions and use the primary key.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, TypeVar

from django.db.models import QuerySet
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from runtime.database.ids import EPOCH, id_floor

#: The values of the parameter `age`, in hours.
AGES = {"1h": 1, "24h": 24, "7d": 7 * 24, "31d": 31 * 24}
#: More than a row's time and the time in its id can differ by.
MARGIN = dt.timedelta(days=1)
_LATEST = dt.datetime(9999, 12, 30, tzinfo=dt.UTC)
NAMES = ("age", "since", "until")

Rows = TypeVar("Rows", bound=QuerySet[Any])


def narrow_to_period(rows: Rows, params: Mapping[str, str], *, now: dt.datetime, column: str = "id") -> Rows:
    """Keep rows made in the last `age`, from `since`, and to the end of the day or moment `until`.

    Compare `column`, which is `id` or has a time. Ignore values that cannot be read.
    """

    def bound(time: dt.datetime) -> object:
        return id_floor(time) if column == "id" else time

    if hours := AGES.get(params.get("age", "")):
        rows = rows.filter(**{f"{column}__gte": bound(now - dt.timedelta(hours=hours))})
    if since := read_time(params.get("since", "")):
        rows = rows.filter(**{f"{column}__gte": bound(since)})
    if until := read_time(params.get("until", ""), is_end=True):
        rows = rows.filter(**{f"{column}__lt": bound(until)})
    return rows


def first_id_time(since: dt.datetime) -> dt.datetime:
    """Return a time before that of every id that was made at `since` or later, by whatever clock."""
    return max(since, EPOCH + MARGIN) - MARGIN


def narrow_to_created(rows: Rows, *, since: dt.datetime | None, until: dt.datetime | None) -> Rows:
    """Keep the rows of a partitioned table whose `created_at` is from `since` to before `until`.

    Also bound the ids, by a day more on each side: an id has the time of its maker's clock.
    """
    if since:
        rows = rows.filter(created_at__gte=since, id__gte=id_floor(first_id_time(since)))
    if until:
        rows = rows.filter(created_at__lt=until, id__lt=id_floor(min(until, _LATEST) + MARGIN))
    return rows


def freeze_period(params: Mapping[str, str], *, now: dt.datetime) -> dict[str, str]:
    """Return the parameters with moments in place of `age` and dates.

    They keep their meaning as time passes, and in a worker, which has another time zone than the person.
    """
    frozen = {name: value for name, value in params.items() if name != "age"}
    for name in {"since", "until"} & params.keys():
        if moment := read_time(params[name], is_end=name == "until"):
            frozen[name] = moment.isoformat()
    if hours := AGES.get(params.get("age", "")):
        since = now - dt.timedelta(hours=hours)
        typed = read_time(params.get("since", ""))
        frozen["since"] = (max(since, typed) if typed else since).isoformat()
    return frozen


def read_time(text: str, *, is_end: bool = False) -> dt.datetime | None:
    """Read a date or an ISO 8601 time, in the current time zone if it has no offset. Otherwise return None.

    A date is its beginning, or its end if `is_end`.
    """
    zone = timezone.get_current_timezone()
    try:
        if day := parse_date(text):
            following = day + dt.timedelta(days=1) if is_end else day
            moment = dt.datetime.combine(following, dt.time(), zone).astimezone(dt.UTC)
        elif parsed := parse_datetime(text):
            moment = (parsed if parsed.tzinfo else parsed.replace(tzinfo=zone)).astimezone(dt.UTC)
        else:
            return None
    except (ValueError, OverflowError):
        return None
    return moment if 1970 <= moment.year < 9999 else None
