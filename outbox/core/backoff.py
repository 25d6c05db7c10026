"""How long a failed delivery waits before it is tried again. Pure: the caller brings chance and limits."""

from __future__ import annotations


def ceiling(*, retry: int, base: float, cap: float) -> float:
    """This function will give the longest wait in seconds before retry number `retry` (1, 2, …).

    >>> [ceiling(retry=n, base=30, cap=3600) for n in (1, 2, 3, 8, 500)]
    [30.0, 60.0, 120.0, 3600.0, 3600.0]
    """
    return float(min(cap, base * 2 ** min(retry - 1, 62)))


def full_jitter(*, retry: int, base: float, cap: float, chance: float) -> float:
    """This function will spread the waits over all of 0 … ceiling, so that failures don't return together.

    `chance` is a number drawn from [0, 1). "Full jitter" as in Brooker, "Exponential Backoff and Jitter".

    >>> full_jitter(retry=2, base=30, cap=3600, chance=0.5)
    30.0
    """
    return chance * ceiling(retry=retry, base=base, cap=cap)
