"""The metrics of a process, as Prometheus' text or OpenMetrics. Each app declares its own in `metrics.py`.

- `counter("name", "help", ["label"])` makes a counter of the process, and `histogram` a histogram.
- `gauge` declares a gauge. A function under `@at_scrape` yields its values from the database or a broker. Web
  processes call it at each scrape. `runtime.conditions.show` does both for a fact.

`manage.py status --rules` makes the tables of docs/reference/metrics.md from these declarations.
"""

from __future__ import annotations

import dataclasses
import functools
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
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
#: The server that each reader queries, the reader, and whether the installation uses what it reads.
_readers: list[tuple[str, Reader, Callable[[], bool] | None]] = []
# Each counter would have another series with its start time, which nobody needs.
disable_created_metrics()  # type: ignore[no-untyped-call]

#: The value of a gauge without labels, or the values by the label or labels. None is left out.
Values = (
    float
    | Mapping[str, float | None]
    | Mapping[tuple[str, str], float | None]
    | Mapping[tuple[str, str, str], float | None]
)


@dataclasses.dataclass(frozen=True, slots=True)
class Declared:
    """A metric as its readers see it. `help` is also its meaning in docs/reference/metrics.md."""

    name: str
    kind: str
    help: str
    labels: Sequence[str] = ()


class Gauge(Declared):
    """A gauge that is read at each scrape."""

    def family(self, values: Values) -> GaugeMetricFamily:
        """Return the gauge with its present values."""
        family = GaugeMetricFamily(self.name, self.help, labels=self.labels)
        for key, value in values.items() if isinstance(values, Mapping) else [((), values)]:
            if value is not None:
                family.add_metric([key] if isinstance(key, str) else key, value)
        return family


_declared: list[Declared] = []


def counter(name: str, help: str, labels: Sequence[str] = ()) -> Counter:
    """Declare a counter of the process. Prometheus' readers add `_total` to its name."""
    _declared.append(Declared(f"{name}_total", "counter", help, labels))
    return Counter(name, help, labels, registry=REGISTRY)


def histogram(name: str, help: str, labels: Sequence[str] = (), *, buckets: Sequence[float]) -> Histogram:
    """Declare a histogram of the process."""
    _declared.append(Declared(name, "histogram", help, labels))
    return Histogram(name, help, labels, buckets=buckets, registry=REGISTRY)


def gauge(name: str, help: str, labels: Sequence[str] = ()) -> Gauge:
    """Declare a gauge."""
    _declared.append(declared := Gauge(name, "gauge", help, labels))
    return declared


def declared_metrics() -> Sequence[Declared]:
    """Return the metrics of all apps."""
    return tuple(_declared)


DATABASE_UP = gauge("orderpost_database_up", "1 if PostgreSQL answered")
BROKER_UP = gauge("orderpost_broker_up", "1 if `redis` (or `kafka`, if used) answered", ["broker"])
BUILD_INFO = gauge("orderpost_build_info", "1, for the program that runs", ["version", "python", "role"])
LOOP_AGE = gauge("orderpost_loop_age_seconds", "since the process's loop last ran", ["role"])


def at_scrape(read: Reader) -> Reader:
    """Register a function that is called at each scrape, to expose the metric families that it yields.

    It queries the database. After an error, this scrape skips the other functions of the same server: each of
    them would wait, too.
    """
    _readers.append(("database", read, None))
    return read


def from_broker(broker: str, *, is_used: Callable[[], bool] | None = None) -> Callable[[Reader], Reader]:
    """Register as `at_scrape` does a function that queries a broker: `redis` or `kafka`.

    `is_used` queries the database at each scrape. If it returns false or fails, the function is not called.
    """

    def register(read: Reader) -> Reader:
        _readers.append((broker, read, is_used))
        return read

    return register


def exposition(*, accept: str, with_readers: bool = True) -> tuple[bytes, str]:
    """Return the metrics of this process, or with PROMETHEUS_MULTIPROC_DIR of all processes that share it.

    The second value is the content type: OpenMetrics if the header `accept` names it, as Prometheus' does, or
    else Prometheus' text format. If `with_readers`, include the metrics of the database and the brokers.
    """
    encode, content_type = choose_encoder(accept)
    return encode(_Collected(families(with_readers=with_readers))), content_type


def families(*, with_readers: bool) -> list[Metric]:
    """Return the metric families of `exposition`."""
    metrics = [*_of_the_process()]
    if with_readers:
        metrics += _read_all()
    shared = metrics_files.DIRECTORY
    return [*metrics, *(metrics_files.collect(shared) if shared else REGISTRY.collect())]


def _read_all() -> Iterator[Metric]:
    up: dict[str, bool] = {"database": True, "redis": True}
    by_name: dict[str, Metric] = {}
    for source, read, is_used in _readers:
        name = read.__name__
        if is_used is not None and not _ask("database", name, is_used, up):
            continue
        for family in _ask(source, name, functools.partial(_call, read), up) or ():
            if (first := by_name.setdefault(family.name, family)) is not family:
                first.samples += family.samples
    yield from by_name.values()
    yield DATABASE_UP.family(up.pop("database"))
    yield BROKER_UP.family(up)


def _call(read: Reader) -> list[Metric]:
    return list(read())  # inside `_ask`: a generator fails only when it is iterated


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
    roles = health.roles()
    yield BUILD_INFO.family({(version(), platform.python_version(), role): 1 for role in roles})
    yield LOOP_AGE.family({role: health.quiet_seconds(role) for role in roles})


class _Collected(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
