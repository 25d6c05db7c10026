"""The metrics that /metrics exposes. Each app declares its own in `metrics.py`; every process imports these.

- A counter or a histogram of the process: `Counter("name", "help", registry=REGISTRY)`.
- A number that the database has: a function under `@at_scrape` that yields metric families.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

Reader = Callable[[], Iterable[Metric]]

#: The counters and histograms of this process.
REGISTRY = CollectorRegistry(auto_describe=False)
_readers: list[Reader] = []


def at_scrape(read: Reader) -> Reader:
    """Call the decorated function at each scrape, and expose the metric families that it yields."""
    _readers.append(read)
    return read


def exposition() -> bytes:
    """Return every declared metric in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    for read in (*_readers, REGISTRY.collect):
        registry.register(_Reading(read))
    return generate_latest(registry)


class _Reading(Collector):
    def __init__(self, read: Reader) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        return self._read()
