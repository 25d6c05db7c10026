"""Whose failure was it? A message's failure is judged by what first attempts of other messages met nearby.

Each process counts the first attempts that it made: by provider, in buckets of a second, for two hours, in
memory. What a process did not see charges nothing, so a restart or a quiet shop errs on the message's side.
"""

from __future__ import annotations

import dataclasses
import threading
import uuid
from collections import OrderedDict

BUCKET_SECONDS = 1.0
KEPT_SECONDS = 7200.0
#: How far to each side a failure's neighbours are looked for, in seconds: the nearest that are enough decide.
REACHES = (5, 15, 60, 120)
LEAST = 3
ACCEPTED_SHARE = 0.95
#: So many failed messages are stored in each bucket at most; the share is clear by then.
MOST_FAILED = 100


@dataclasses.dataclass(slots=True)
class _Bucket:
    accepted: int = 0
    failed: set[uuid.UUID] = dataclasses.field(default_factory=set)


class Neighbours:
    """The first attempts of one process. Times are seconds of the process's monotonic clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buckets: dict[str, OrderedDict[int, _Bucket]] = {}

    def record(self, *, provider: str, id: uuid.UUID, accepted: bool, at: float) -> None:
        """Count a first attempt's end."""
        with self._lock:
            buckets = self._buckets.setdefault(provider, OrderedDict())
            bucket = buckets.setdefault(int(at // BUCKET_SECONDS), _Bucket())
            if accepted:
                bucket.accepted += 1
            elif len(bucket.failed) < MOST_FAILED:
                bucket.failed.add(id)
            oldest = (at - KEPT_SECONDS) // BUCKET_SECONDS
            while buckets and next(iter(buckets)) < oldest:
                buckets.popitem(last=False)

    def blame_message(self, *, provider: str, id: uuid.UUID, at: float) -> bool:
        """Return whether the failure of `id` at `at` was the message's own.

        True if, within the smallest reach that has three first attempts of other messages, at least one of
        them later, 95 % of those before (there may be none) and 95 % of those after were accepted.
        """
        moment = int(at // BUCKET_SECONDS)
        with self._lock:
            buckets = self._buckets.get(provider, OrderedDict())
            for reach in REACHES:
                span = int(reach / BUCKET_SECONDS)
                before = self._count(buckets, range(moment - span, moment + 1), id)
                after = self._count(buckets, range(moment + 1, moment + span + 1), id)
                if sum(after) >= 1 and sum(before) + sum(after) >= LEAST:
                    return all(_is_healthy(*side) for side in (before, after))
        return False

    @staticmethod
    def _count(buckets: OrderedDict[int, _Bucket], span: range, id: uuid.UUID) -> tuple[int, int]:
        found = [bucket for second in span if (bucket := buckets.get(second)) is not None]
        return sum(one.accepted for one in found), sum(len(one.failed - {id}) for one in found)


def _is_healthy(accepted: int, failed: int) -> bool:
    return accepted >= ACCEPTED_SHARE * (accepted + failed)
