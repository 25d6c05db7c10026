"""Read a row's list of errors: which attempts it had, and which of them may have been accepted. Pure.

An entry is one provider's answer: `at` (ISO 8601), `provider`, `outcome` (a verdict), `code`, `text`. Entries
of one attempt have the same `at`. `counts: true` marks a failure that may be the e-mail's own. An entry never
changes.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from notifications.states.outcomes import Outcome, Verdict
from notifications.states.transitions import Status
from runtime.texts import make_storable

ErrorEntry = Mapping[str, Any]
#: The time of an entry without `at`, which a person wrote. Such a row must not stop a whole batch.
LONG_AGO = dt.datetime.min.replace(tzinfo=dt.UTC)


@dataclasses.dataclass(frozen=True, slots=True)
class Doubt:
    """An attempt that a provider may have accepted. `provider` is empty for an expired lease."""

    provider: str
    tried_at: dt.datetime


def entry_of(failure: Outcome) -> dict[str, Any]:
    """Return a failure's entry without its time, which the database writes."""
    entry: dict[str, Any] = {
        "provider": failure.provider,
        "outcome": str(failure.verdict),
        "code": make_storable(failure.code),
        "text": failure.error,
    }
    return entry | {"counts": True} if failure.counts else entry


def entries_since(errors: Sequence[ErrorEntry], resent_at: dt.datetime | None) -> Sequence[ErrorEntry]:
    """Return the entries of attempts after the last resend."""
    if resent_at is None:
        return errors
    return [entry for entry in errors if time_of(entry) > resent_at]


def count_attempts(errors: Sequence[ErrorEntry], resent_at: dt.datetime | None) -> int:
    """Count the failed attempts since the last resend. Several providers asked in turn are one attempt."""
    return len({time_of(entry) for entry in entries_since(errors, resent_at)})


def find_doubts(errors: Sequence[ErrorEntry], resent_at: dt.datetime | None) -> list[Doubt]:
    """Return the attempts since the last resend that may have been accepted, oldest first."""
    return [
        Doubt(str(entry.get("provider", "")), time_of(entry))
        for entry in entries_since(errors, resent_at)
        if entry.get("outcome") == Verdict.AMBIGUOUS
    ]


def count_lost(errors: Sequence[ErrorEntry], resent_at: dt.datetime | None) -> int:
    """Count the attempts since the last resend of which nobody knows what became (`Outcome.is_lost`)."""
    return sum(not doubt.provider for doubt in find_doubts(errors, resent_at))


def counted_failures(
    errors: Sequence[ErrorEntry], resent_at: dt.datetime | None
) -> dict[str, list[dt.datetime]]:
    """Return by provider when it failed the e-mail since the last resend, if the failure counts."""
    times: defaultdict[str, list[dt.datetime]] = defaultdict(list)
    for entry in entries_since(errors, resent_at):
        if entry.get("counts") and entry.get("provider"):
            times[entry["provider"]].append(time_of(entry))
    return times


def failing_since(errors: Sequence[ErrorEntry]) -> dt.datetime | None:
    """Return when the newest run of attempts began that count, or None without such a run.

    An attempt that was certainly the provider's failure, as in an outage, ends a run.
    """
    by_attempt: dict[dt.datetime, bool] = {}
    for entry in errors:
        at = time_of(entry)
        by_attempt[at] = by_attempt.get(at, False) or bool(entry.get("counts"))
    since = None
    for at, counts in by_attempt.items():
        since = (since or at) if counts else None
    return since


def last_doubt(errors: Sequence[ErrorEntry], resent_at: dt.datetime | None) -> Doubt | None:
    """Return the newest attempt since the last resend that may have been accepted."""
    doubts = find_doubts(errors, resent_at)
    return doubts[-1] if doubts else None


def may_have(*, asked: Collection[str], provider: str, status: str, errors: Sequence[ErrorEntry]) -> bool:
    """Return whether one of the providers `asked` may have a row's e-mail, so that evidence about it counts.

    `provider` is that of the row. While the row is `processing`, and after an entry without a provider, any
    provider may have it: the process that knew which one may have died.
    """
    if status == Status.PROCESSING or provider in asked:
        return True
    return any(entry.get("provider", "") in ("", *asked) for entry in errors)


def time_of(entry: ErrorEntry) -> dt.datetime:
    """Return when an entry was written, by the database's clock, or `LONG_AGO` without a time."""
    return dt.datetime.fromisoformat(entry["at"]) if "at" in entry else LONG_AGO
