"""The lines of a timeline in the admin: one for each entry, with the time since the line before."""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Iterable

from django.urls import reverse
from django.utils import timezone

from notifications.changes.trail import TimelineEntry

#: A page shows at most so many entries, the newest.
MOST = 300
#: The tones of lines, by `TimelineEntry.what`.
BAD = {
    *("bounced", "complained", "dead_lettered", "permanent", "misconfigured", "sender_refused"),
    *("suppressed", "discarded", "payment_unexpected"),
}
GOOD = {"sent", "delivered", "published"}
UNSURE = {"transient", "unreachable", "ambiguous", "throttled", "warning"}


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One entry with its link and `gap`. `tone` is good, bad, unsure or empty.

    `gap` is the time since the entry before, or the time until a planned entry.
    """

    entry: TimelineEntry
    gap: str
    url: str
    tone: str


def lines_of(
    entries: Iterable[TimelineEntry], *, here: uuid.UUID | None = None, may_open_events: bool = False
) -> list[Line]:
    """Return the newest entries as lines, newest first. Those of the e-mail `here` have no link to it."""
    shown = list(entries)[-MOST:]
    before: dt.datetime | None = None
    lines = []
    for entry in shown:
        planned = entry.kind == "plan"
        since = timezone.now() if planned else before
        gap = "" if since is None else f"{'in ' if planned else '+'}{span(entry.at - since)}"
        url = "" if here and entry.notification_id == here else _url(entry, may_open_events)
        lines.append(Line(entry, gap, url, _tone(entry.what)))
        before = entry.at
    return lines[::-1]


def span(time: dt.timedelta) -> str:
    """Write a time span with one unit.

    >>> [span(dt.timedelta(seconds=n)) for n in (-1, 0.04, 2.5, 90, 7300, 200000)]
    ['0 s', '40 ms', '2.5 s', '1 min', '2 h', '2 d']
    """
    seconds = max(0.0, time.total_seconds())
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds else "0 s"


def _url(entry: TimelineEntry, may_open_events: bool) -> str:
    if entry.notification_id:
        return reverse("admin:notifications_emailnotification_change", args=[entry.notification_id])
    if entry.event_id and may_open_events:
        return reverse("admin:events_domainevent_change", args=[entry.event_id])
    return ""


def _tone(what: str) -> str:
    return "bad" if what in BAD else "good" if what in GOOD else "unsure" if what in UNSURE else ""
