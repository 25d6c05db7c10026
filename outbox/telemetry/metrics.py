"""The metrics of a process, in Prometheus' text format. Each app declares its own in `metrics.py`.

- A counter or a histogram of the process: `Counter("name", "help", registry=REGISTRY)`.
- A number that the database or a broker has: a function under `@at_scrape` that yields metric families. Web
  processes call it at each scrape.

docs/reference/metrics.md lists all of them; a test compares.
"""

from __future__ import annotations

import contextlib
import functools
import platform
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from outbox.telemetry import health, metrics_files

log = structlog.get_logger(__name__)

Reader = Callable[[], Iterable[Metric]]
PROJECT_FILE = Path(__file__).resolve().parent.parent.parent / "pyproject.toml"

#: The counters and histograms of this process.
REGISTRY = CollectorRegistry(auto_describe=False)
_readers: list[tuple[str, Reader]] = []
# A series for each counter that says when it began: nobody asks for it.
disable_created_metrics()  # type: ignore[no-untyped-call]


def at_scrape(read: Reader, *, source: str = "database") -> Reader:
    """Call the decorated function at each scrape, and expose the metric families that it yields.

    `source` is what it asks. After an error the other functions of the same source are left out of this
    scrape: each would wait in its turn.
    """
    _readers.append((source, read))
    return read


def from_broker(broker: str) -> Callable[[Reader], Reader]:
    """Return `at_scrape` for functions that ask a broker: `redis` or `kafka`."""
    return functools.partial(at_scrape, source=broker)


def exposition(*, with_readers: bool = True) -> bytes:
    """Return the metrics of this process, or with PROMETHEUS_MULTIPROC_DIR of all that share it.

    `with_readers`: what the database and the brokers have, too.
    """
    return generate_latest(_Collected(families(with_readers=with_readers)))


def families(*, with_readers: bool) -> list[Metric]:
    """Return what `exposition` shows."""
    found = [*_of_the_process()]
    if with_readers:
        found += _read_all()
    shared = metrics_files.DIRECTORY
    return [*found, *(metrics_files.collect(shared) if shared else REGISTRY.collect())]


def _read_all() -> Iterator[Metric]:
    up: dict[str, bool] = {"database": True, "redis": True}
    for source, read in _readers:
        if up.setdefault(source, True):
            try:
                yield from list(read())
            except Exception as error:  # noqa: BLE001 - the others' numbers matter most when one fails
                up[source] = False
                log.warning("metrics cannot be read", source=source, reader=read.__name__, error=str(error))
    yield GaugeMetricFamily(
        "orderpost_database_up", "1 if PostgreSQL answered this scrape, else 0", value=up.pop("database")
    )
    brokers = GaugeMetricFamily(
        "orderpost_broker_up", "1 if the broker answered this scrape, else 0", labels=["broker"]
    )
    for broker, answered in up.items():
        brokers.add_metric([broker], answered)
    yield brokers


def _of_the_process() -> Iterator[Metric]:
    build = GaugeMetricFamily(
        "orderpost_build_info", "The program that runs here", labels=["version", "python", "role"]
    )
    age = GaugeMetricFamily(
        "orderpost_loop_age_seconds", "Since the process's own loop last went round", labels=["role"]
    )
    for role in health.roles():
        build.add_metric([version(), platform.python_version(), role], 1)
        if (seconds := health.quiet_seconds(role)) is not None:
            age.add_metric([role], seconds)
    yield from (build, age)
    if not metrics_files.DIRECTORY:
        yield from ProcessCollector(registry=None).collect()


@functools.cache
def version() -> str:
    """Return this program's version."""
    with contextlib.suppress(OSError):
        return str(tomllib.loads(PROJECT_FILE.read_text())["project"]["version"])
    return "unknown"


class _Collected(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
