"""Judge whether failures are the message's own or the provider's, by the first attempts of other messages.

Each process counts its first attempts in memory: by provider, in buckets of a second, for two hours. It does
not charge a message for failures whose neighbours it did not see, so after a restart it charges too few.

One failure in a quiet shop has few neighbours. While a provider fails 35 % of all sends, three neighbours are
accepted by chance in a quarter of the cases. So the neighbours of all failures of a message count together.
tests/outbox/delivery/test_simulated_shop.py simulates outages, brown-outs and poisonous messages.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Sequence

KEPT_SECONDS = 7200.0
#: Seconds before and after a failure in which to find its neighbours, tried in this order.
REACHES = (5, 15, 60, 120)
#: A failure with fewer neighbours proves nothing.
LEAST = 3
ACCEPTED_SHARE = 0.95
#: So many accepted neighbours of all its failures together prove that the failures are the message's own.
ENOUGH = 24
#: One outage of a provider is one gap between acceptances, however often a message was tried in it.
LEAST_GAPS = 2
#: A bucket stores at most so many failed messages, because more would hardly change the share.
MOST_FAILED = 100


@dataclasses.dataclass(slots=True)
class _Bucket:
    accepted: int = 0
    failed: set[uuid.UUID] = dataclasses.field(default_factory=set)


_Buckets = OrderedDict[int, _Bucket]


class Neighbours:
    """The first attempts of one process. Times are seconds of the process's monotonic clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buckets: dict[str, _Buckets] = {}

    def record(self, *, provider: str, id: uuid.UUID, is_accepted: bool, ended_at: float) -> None:
        with self._lock:
            buckets = self._buckets.setdefault(provider, OrderedDict())
            bucket = buckets.setdefault(math.floor(ended_at), _Bucket())
            if is_accepted:
                bucket.accepted += 1
            elif len(bucket.failed) < MOST_FAILED:
                bucket.failed.add(id)
            oldest = math.floor(ended_at - KEPT_SECONDS)
            while buckets and next(iter(buckets)) < oldest:
                buckets.popitem(last=False)

    def count_own_failures(self, *, provider: str, id: uuid.UUID, at: Iterable[float]) -> int:
        """Return how many of the failures of `id` at the times `at` were the message's own: all or none.

        A failure counts against the message if it has at least three neighbours within two minutes, at least
        one of them later, and if 95 % of those before (if any) and 95 % of those after were accepted. The
        failures were the message's own if those that count lie in at least two gaps between acceptances and
        have 24 accepted neighbours together, and if 95 % of the neighbours beyond 24 were accepted, too.
        Failures in one gap count once.
        """
        moments = sorted({math.floor(one) for one in at})
        with self._lock:
            buckets = self._buckets.get(provider, OrderedDict())
            spans = {moment: self._accepting_span(buckets, moment, id) for moment in moments}
            against = [moment for moment in moments if spans[moment]]
            accepted, failed = self._count(buckets, set().union(*spans.values()), id)
            if accepted < ENOUGH or not _is_healthy(accepted - ENOUGH, failed):
                return 0
            if self._count_gaps(buckets, against) < LEAST_GAPS:
                return 0
            return self._count_gaps(buckets, moments)

    def _accepting_span(self, buckets: _Buckets, moment: int, id: uuid.UUID) -> range:
        """Return the seconds around a failure in which other messages were accepted, or an empty range."""
        found = range(0)
        for reach in REACHES:
            before = self._count(buckets, range(moment - reach, moment + 1), id)
            after = self._count(buckets, range(moment + 1, moment + reach + 1), id)
            if not sum(after) or sum(before) + sum(after) < LEAST:
                continue
            if not all(_is_healthy(*side) for side in (before, after)):
                break
            found = range(moment - reach, moment + reach + 1)
            if sum(before) + sum(after) >= ENOUGH:
                break
        return found

    @staticmethod
    def _count(buckets: _Buckets, span: Iterable[int], id: uuid.UUID) -> tuple[int, int]:
        found = [bucket for second in span if (bucket := buckets.get(second)) is not None]
        return sum(one.accepted for one in found), sum(len(one.failed - {id}) for one in found)

    @staticmethod
    def _count_gaps(buckets: _Buckets, moments: Sequence[int]) -> int:
        """Count the gaps between acceptances that the moments lie in."""
        gaps, last = 0, None
        for moment in moments:
            between = () if last is None else range(last + 1, moment + 1)
            if last is None or any(one in buckets and buckets[one].accepted for one in between):
                gaps += 1
            last = moment
        return gaps


def _is_healthy(accepted: int, failed: int) -> bool:
    return accepted >= ACCEPTED_SHARE * (accepted + failed)
