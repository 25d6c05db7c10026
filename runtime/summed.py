"""Declare sums for the admin's charts. Each app does so in its `sums.py`."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from django.db import connections, transaction


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The times [since, until) by the database's clock, in whole steps of `span` seconds."""

    since: dt.datetime
    until: dt.datetime
    span: int

    def parameters(self) -> dict[str, Any]:
        """Return the window as a statement's parameters: since, until, span (an interval)."""
        return {"since": self.since, "until": self.until, "span": dt.timedelta(seconds=self.span)}


#: SQL that rounds a time down to a step of a window: `STEP.format("sent_at")`.
STEP = "date_bin(%(span)s, {}, '2000-01-01 00:00+00')"


class Cell(NamedTuple):
    """`number` more of `series` in the step from `starts_at` on. With a `bucket`, these are durations."""

    starts_at: dt.datetime
    series: str
    number: int
    bucket: int | None = None


Reader = Callable[[Window], Iterable[Cell]]
Sampler = Callable[[], Mapping[str, int]]
_readers: list[Reader] = []
_samplers: list[Sampler] = []


def summed(read: Reader) -> Reader:
    """Register a function that yields cells for a window of time.

    It may be called again for the same window. Then the new cells replace the old ones.
    """
    _readers.append(read)
    return read


def sampled(sample: Sampler) -> Sampler:
    """Register a function that returns present numbers. It is called once for the newest minute."""
    _samplers.append(sample)
    return sample


def read_all(window: Window) -> Iterator[Cell]:
    """Yield the cells of every declared reader.

    All readers use indexes. Without `enable_seqscan = off`, the planner would read a whole partition if a
    column is nearly always NULL, like `bounced_at`, because an expression over it has no statistics then.
    """
    with transaction.atomic(), connections["default"].cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        for read in _readers:
            yield from read(window)
        cursor.execute("SET LOCAL enable_seqscan = on")


def sample_all() -> dict[str, int]:
    samples: dict[str, int] = {}
    for sample in _samplers:
        samples |= sample()
    return samples


def select_cells(statement: str, window: Window, **more: Any) -> list[Cell]:
    """Run a statement whose columns are those of `Cell`, with the window's parameters and `more`."""
    with connections["default"].cursor() as cursor:
        cursor.execute(statement, window.parameters() | more)
        return [Cell(*row) for row in cursor.fetchall()]
