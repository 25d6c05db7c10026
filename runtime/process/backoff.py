"""Compute how long to wait before another try. The caller draws `chance` from [0, 1)."""

from __future__ import annotations

import dataclasses

#: The smallest and largest fraction of a wait. Random waits do not end together. "Equal" and "full" are the
#: terms of Brooker, "Exponential Backoff and Jitter".
NO_JITTER, EQUAL_JITTER, FULL_JITTER, SLIGHT_JITTER = (1.0, 1.0), (0.5, 1.0), (0.0, 1.0), (0.8, 1.2)


@dataclasses.dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The waits before retries: `base_seconds`, doubled at each retry up to `cap_seconds`.

    `delays_seconds`, if given, replaces both. Its last delay repeats. A wait is a random part of that time
    between the two fractions of `jitter`.
    """

    base_seconds: float
    cap_seconds: float
    delays_seconds: tuple[float, ...] = ()
    jitter: tuple[float, float] = EQUAL_JITTER

    def delay(self, *, attempt: int, chance: float) -> float:
        """Return the seconds from failed attempt number `attempt` (1, 2, …) to the next one.

        >>> policy = RetryPolicy(base_seconds=30, cap_seconds=3600, jitter=NO_JITTER)
        >>> [policy.delay(attempt=n, chance=0.5) for n in (1, 2, 3, 8, 500)]
        [30.0, 60.0, 120.0, 3600.0, 3600.0]
        >>> policy = RetryPolicy(base_seconds=1, cap_seconds=16, delays_seconds=(60, 300))
        >>> [policy.delay(attempt=n, chance=0.5) for n in (1, 2, 3)]
        [45.0, 225.0, 225.0]
        """
        if self.delays_seconds:
            longest = self.delays_seconds[min(attempt, len(self.delays_seconds)) - 1]
        else:
            longest = min(self.cap_seconds, self.base_seconds * 2 ** min(attempt - 1, 62))
        low, high = self.jitter
        return longest * (low + (high - low) * chance)
