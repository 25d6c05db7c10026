"""The metrics of a process, as Prometheus' text or OpenMetrics. Each app declares its own in `metrics.py`.

- `Counter("name", "help", registry=REGISTRY)` makes a counter of the process, and `Histogram` a histogram.
- A function under `@at_scrape` yields metric families from the database or a broker. Web processes call it at
  each scrape.

docs/reference/metrics.md lists all of them, and a test compares it.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import structlog
from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from runtime.telemetry import health, metrics_files
from runtime.telemetry.release import version

log = structlog.get_logger(__name__)

Reader = Callable[[], Iterable[Metric]]
T = TypeVar("T")

#: The counters and histograms of this process.
REGISTRY = CollectorRegistry(auto_describe=False)
_readers: list[tuple[str, Reader]] = []
#: By reader: whether the installation uses what it reads. The function queries the database.
_uses: dict[Reader, Callable[[], bool]] = {}
# Without this, each counter would have another series with its start time, which nobody needs.
disable_created_metrics()  # type: ignore[no-untyped-call]


def at_scrape(read: Reader, *, source: str = "database") -> Reader:
    """Register a function that is called at each scrape, to expose the metric families that it yields.

    `source` is the server that the function queries. After an error, this scrape skips the other functions of
    the same source, because each of them would wait, too.
    """
    _readers.append((source, read))
    return read


def from_broker(broker: str, *, is_used: Callable[[], bool] | None = None) -> Callable[[Reader], Reader]:
    """Return `at_scrape` for functions that query a broker: `redis` or `kafka`.

    `is_used` queries the database at each scrape. If it returns false or fails, the function is not called.
    """

    def register(read: Reader) -> Reader:
        if is_used is not None:
            _uses[read] = is_used
        return at_scrape(read, source=broker)

    return register


def exposition(*, accept: str, with_readers: bool = True) -> tuple[bytes, str]:
    """Return the metrics of this process, or with PROMETHEUS_MULTIPROC_DIR of all processes that share it.

    The second value is the content type: OpenMetrics if the header `accept` names it, as Prometheus' does, or
    else Prometheus' text format. With `with_readers`, include the metrics of the database and the brokers.
    """
    encode, content_type = choose_encoder(accept)
    return encode(_Collected(families(with_readers=with_readers))), content_type


def families(*, with_readers: bool) -> list[Metric]:
    """Return the metric families of `exposition`."""
    found = [*_of_the_process()]
    if with_readers:
        found += _read_all()
    shared = metrics_files.DIRECTORY
    return [*found, *(metrics_files.collect(shared) if shared else REGISTRY.collect())]


def _read_all() -> Iterator[Metric]:
    up: dict[str, bool] = {"database": True, "redis": True}
    found: dict[str, Metric] = {}
    for source, read in _readers:
        name = read.__name__
        if (is_used := _uses.get(read)) is not None and not _ask("database", name, is_used, up):
            continue
        for family in _ask(source, name, functools.partial(_call, read), up) or ():
            if (known := found.setdefault(family.name, family)) is not family:
                known.samples += family.samples
    yield from found.values()
    yield GaugeMetricFamily(
        "orderpost_database_up", "1 if PostgreSQL answered this scrape, else 0", value=up.pop("database")
    )
    brokers = GaugeMetricFamily(
        "orderpost_broker_up", "1 if the broker answered this scrape, else 0", labels=["broker"]
    )
    for broker, answered in up.items():
        brokers.add_metric([broker], answered)
    yield brokers


def _call(read: Reader) -> list[Metric]:
    return list(read())  # inside `_ask`, because a generator fails only when it is iterated


def _ask(source: str, reader: str, ask: Callable[[], T], up: dict[str, bool]) -> T | None:
    """Call `ask` if the source has answered in this scrape so far. After an error, log it and return None."""
    if up.setdefault(source, True):
        try:
            return ask()
        except Exception as error:  # noqa: BLE001 - the other sources' numbers matter most in an outage
            up[source] = False
            log.warning("metrics cannot be read", source=source, reader=reader, error=str(error))
    return None


def _of_the_process() -> Iterator[Metric]:
    build = GaugeMetricFamily(
        "orderpost_build_info", "The program that runs here", labels=["version", "python", "role"]
    )
    age = GaugeMetricFamily(
        "orderpost_loop_age_seconds", "Since the last beat of the process's own loop", labels=["role"]
    )
    for role in health.roles():
        build.add_metric([version(), platform.python_version(), role], 1)
        if (seconds := health.quiet_seconds(role)) is not None:
            age.add_metric([role], seconds)
    yield from (build, age)


class _Collected(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
