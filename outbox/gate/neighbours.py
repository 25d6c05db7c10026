"""Judge whether failures are the message's own or the provider's, by the first attempts of other messages.

A failure is the message's own if the first attempts of others before and after it, at that provider, were
accepted. Each process remembers its own attempts, so after a restart it charges too few retries.
tests/rules/outbox/test_simulated_shop.py simulates outages, brown-outs and poisonous messages.
"""

from __future__ import annotations

import bisect
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterable
from operator import itemgetter

#: So many others on each side of a failure have to be accepted, and in a quiet shop so many. While a provider
#: fails 10 % of all sends, eight let less than one message of a million use up its retries by chance.
EACH_SIDE, EACH_SIDE_IF_QUIET = 8, 4
#: A shop is quiet if fewer than `EACH_SIDE` attempts ended in so many seconds before the failure.
QUIET_SECONDS = 60.0
#: So many attempts of a provider are remembered at most.
MOST = 20_000


class Neighbours:
    """The first attempts of one process. Times are seconds of the process's monotonic clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: By provider, when an attempt ended, its message, and whether it was accepted, in this order.
        self._ended: defaultdict[str, list[tuple[float, uuid.UUID, bool]]] = defaultdict(list)

    def record(self, *, provider: str, id: uuid.UUID, is_accepted: bool, ended_at: float) -> None:
        with self._lock:
            ended = self._ended[provider]
            bisect.insort(ended, (ended_at, id, is_accepted))
            if len(ended) > MOST:
                del ended[: MOST // 2]

    def count_own_failures(self, *, provider: str, id: uuid.UUID, at: Iterable[float]) -> int:
        """Return how many of the failures of `id` at the times `at` were the message's own.

        The neighbours after a failure count once. So one outage is at most one failure of the message.
        """
        own, used = 0, 0
        with self._lock:
            ended = self._ended[provider]
            for moment in sorted(at):
                place = bisect.bisect_right(ended, moment, key=itemgetter(0))
                # One more on each side, because the message's own first attempt may be among them.
                before = [one for one in ended[max(place - EACH_SIDE - 1, 0) : place] if one[1] != id]
                after = [one for one in ended[place : place + EACH_SIDE + 1] if one[1] != id]
                is_quiet = len(before) < EACH_SIDE or moment - before[-EACH_SIDE][0] > QUIET_SECONDS
                each = EACH_SIDE_IF_QUIET if is_quiet else EACH_SIDE
                near = before[-each:] + after[:each]
                if place >= used and len(near) == 2 * each and all(one[2] for one in near):
                    own, used = own + 1, place + each
        return own
