"""What is summed for the admin's charts: each app declares its own in `sums.py`."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from django.db import connections, transaction


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The times [since, until), whole steps of `span` seconds, by the database's clock."""

    since: dt.datetime
    until: dt.datetime
    span: int

    def parameters(self) -> dict[str, Any]:
        """Return the window as a statement's parameters: since, until, span (an interval)."""
        return {"since": self.since, "until": self.until, "span": dt.timedelta(seconds=self.span)}


#: A time as one of the steps of a window, in SQL: `STEP.format("sent_at")`.
STEP = "date_bin(%(span)s, {}, '2000-01-01 00:00+00')"


class Cell(NamedTuple):
    """`number` more of `series` in the step from `starts_at` on; with a `bucket` they are durations."""

    starts_at: dt.datetime
    series: str
    number: int
    bucket: int | None = None


Reader = Callable[[Window], Iterable[Cell]]
Sampler = Callable[[], Mapping[str, int]]
_readers: list[Reader] = []
_samplers: list[Sampler] = []


def summed(read: Reader) -> Reader:
    """Call the decorated function for a window of time, and add up the cells that it yields.

    It may be called again for the same window: what it yields replaces what it yielded before.
    """
    _readers.append(read)
    return read


def sampled(sample: Sampler) -> Sampler:
    """Call the decorated function once for each minute that has just ended; it tells what is true now."""
    _samplers.append(sample)
    return sample


def read_all(window: Window) -> Iterator[Cell]:
    """Yield the cells of every declared reader.

    All read by index. The planner would read a whole partition where a column is nearly always NULL, as
    `bounced_at` is: an expression over it has no statistics then.
    """
    with transaction.atomic(), connections["default"].cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        for read in _readers:
            yield from read(window)
        cursor.execute("SET LOCAL enable_seqscan = on")


def sample_all() -> dict[str, int]:
    """Return what every declared sampler tells."""
    samples: dict[str, int] = {}
    for sample in _samplers:
        samples |= sample()
    return samples


def select_cells(statement: str, window: Window, **more: Any) -> list[Cell]:
    """Run a statement whose columns are those of `Cell`, with the window's parameters and `more`."""
    with connections["default"].cursor() as cursor:
        cursor.execute(statement, window.parameters() | more)
        return [Cell(*row) for row in cursor.fetchall()]
