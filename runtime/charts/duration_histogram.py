"""A histogram of durations with logarithmic bounds. Histograms of several steps can be added.

A spread maps each bucket's number to a count. JSON stores it, and its keys are texts. Bucket n counts the
durations from 2^(n/4) to 2^((n+1)/4) milliseconds: the error of a quantile is at most 10 %.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

STEPS = 4  # buckets for each doubling
Spread = Mapping[str, int]


def bucket_sql(duration: str) -> str:
    """Return SQL for the bucket of `duration`, an SQL expression of type interval."""
    milliseconds = f"greatest(extract(epoch FROM {duration})::float8 * 1000, 1)"
    return f"floor({STEPS} * ln({milliseconds}) / ln(2))::int"


def add_spreads(spreads: Iterable[Spread]) -> dict[str, int]:
    """Add several spreads.

    >>> add_spreads([{"4": 1}, {"4": 2, "8": 1}])
    {'4': 3, '8': 1}
    """
    total: Counter[str] = Counter()
    for spread in spreads:
        total.update(spread)
    return dict(total)


def quantile(spread: Spread, *, share: float) -> float | None:
    """Return the seconds that `share` (0 to 1) of the durations do not exceed, or None if there are none.

    The result is the middle of a bucket.

    >>> quantile({"40": 99, "80": 1}, share=0.5)
    1.1166...
    >>> quantile({}, share=0.5) is None
    True
    """
    total = sum(spread.values())
    seen = 0
    for bucket in sorted(spread, key=int):
        seen += spread[bucket]
        if seen >= math.ceil(share * total):
            return float(2 ** ((int(bucket) + 0.5) / STEPS) / 1000)
    return None
