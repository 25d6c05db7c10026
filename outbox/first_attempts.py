"""Whose failure was it? A failure is the e-mail's own if others were accepted right after it.

Each process remembers the first attempts that it made. After a restart it counts too few failures as the
e-mail's own. tests/rules/outbox/test_simulated_shop.py simulates outages, brown-outs and poisonous e-mails.
"""

from __future__ import annotations

import bisect
import threading
from collections import defaultdict
from collections.abc import Iterable
from operator import itemgetter

#: How many accepted first attempts prove a failure the e-mail's own, and how many in a quiet shop. While a
#: provider fails 10 % of all sends by chance, one e-mail of a million uses up three retries, and in a quiet
#: shop one of a hundred thousand.
ENOUGH, ENOUGH_IF_QUIET = 16, 6
#: A shop is quiet if fewer than `ENOUGH` first attempts ended within so many seconds after the failure.
QUIET_SECONDS = 60.0
#: So many attempts of a provider are remembered at most.
MOST = 20_000


class FirstAttempts:
    """The first attempts of one process. Times are seconds of the process's monotonic clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: By provider, when an attempt ended and whether it was accepted, in this order.
        self._ended: defaultdict[str, list[tuple[float, bool]]] = defaultdict(list)

    def record(self, *, provider: str, is_accepted: bool, ended_at: float) -> None:
        with self._lock:
            ended = self._ended[provider]
            bisect.insort(ended, (ended_at, is_accepted))
            if len(ended) > MOST:
                del ended[: MOST // 2]

    def count_own_failures(self, *, provider: str, at: Iterable[float], now: float) -> int:
        """Return how many of one e-mail's failures at the times `at` were its own.

        One run of acceptances counts one failure, so that an outage is at most one.
        """
        own, used = 0, 0
        with self._lock:
            ended = self._ended[provider]
            for failed_at in sorted(at):
                place = bisect.bisect_right(ended, failed_at, key=itemgetter(0))
                following = ended[place : place + ENOUGH]
                last_at = following[-1][0] if len(following) == ENOUGH else now
                enough = ENOUGH if last_at - failed_at <= QUIET_SECONDS else ENOUGH_IF_QUIET
                run = following[:enough]
                if place >= used and len(run) == enough and all(is_accepted for _, is_accepted in run):
                    own, used = own + 1, place + enough
        return own
