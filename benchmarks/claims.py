"""The times of real claims, from the histogram that each process that sends serves as a metric."""

from __future__ import annotations

import re
from collections import Counter

#: How many claims took at most so many seconds, by each upper bound.
Claims = Counter[float]
SHARES = {"claim p95": 0.95, "claim p99": 0.99}

_BUCKET = re.compile(
    r'^orderpost_claim_duration_seconds_bucket\{(?:[^}]*,)?le="([^"]+)"[^}]*\} (\S+)$', re.MULTILINE
)


def read_claims(exposition: str) -> Claims:
    """Return the buckets in Prometheus' text format, summed over the tables."""
    found = Claims()
    for bound, count in _BUCKET.findall(exposition):
        found[float(bound)] += int(float(count))
    return found


def percentiles(claims: Claims) -> dict[str, float]:
    """Return the percentiles in ms as Prometheus estimates them, or nothing without a claim."""
    return {name: _percentile(claims, share) * 1000 for name, share in SHARES.items() if any(claims.values())}


def _percentile(claims: Claims, share: float) -> float:
    """Return the seconds that `share` of the claims took at most, if those of a bucket are evenly spread."""
    rank, lower, below = claims[float("inf")] * share, 0.0, 0
    for bound, count in sorted(claims.items()):
        if count >= rank:
            return (
                lower if bound == float("inf") else lower + (bound - lower) * (rank - below) / (count - below)
            )
        lower, below = bound, count
    raise ValueError("The histogram has no bucket without an upper bound.")
