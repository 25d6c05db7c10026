"""Compute the wait before another try. Pure: the caller draws `chance` from [0, 1) and passes the limits."""

from __future__ import annotations


def compute_ceiling(*, retry: int, base_seconds: float, cap_seconds: float) -> float:
    """Return the longest wait in seconds before retry number `retry` (1, 2, …).

    >>> [compute_ceiling(retry=n, base_seconds=30, cap_seconds=3600) for n in (1, 2, 3, 8, 500)]
    [30.0, 60.0, 120.0, 3600.0, 3600.0]
    """
    return float(min(cap_seconds, base_seconds * 2 ** min(retry - 1, 62)))


def add_jitter(*, seconds: float, low: float, high: float, chance: float) -> float:
    """Choose a wait between `low` and `high` times `seconds`, so that many waits do not end together.

    From 0 to 1 is "full jitter", from 0.5 to 1 "equal jitter" (Brooker, "Exponential Backoff and Jitter").

    >>> add_jitter(seconds=60, low=0.5, high=1, chance=0.5)
    45.0
    """
    return seconds * (low + (high - low) * chance)
