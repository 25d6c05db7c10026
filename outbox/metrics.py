"""The engine's gauges: rows that are not finished, partitions ahead, the last poll."""

from __future__ import annotations

from collections.abc import Iterator

from django.apps import apps
from prometheus_client.core import GaugeMetricFamily

from outbox.core.clock import database_now
from outbox.core.metrics import at_scrape
from outbox.delivery.deliverable import Deliverable
from outbox.delivery.outcomes import UNFINISHED, Status
from outbox.models import Heartbeat
from outbox.retention import partitions

COUNT_LIMIT = 100_000  # keeps a scrape cheap in an outage, when it matters most
#: The column whose partial index finds the rows of a status.
_INDEXED = {
    Status.PENDING: "next_attempt_at",
    Status.FAILED: "next_attempt_at",
    Status.PROCESSING: "claimed_at",
    Status.DEAD_LETTERED: "-id",
}


@at_scrape
def unfinished_rows() -> Iterator[GaugeMetricFamily]:
    rows = GaugeMetricFamily(
        "orderpost_unfinished",
        f"Rows that are not finished, counted to at most {COUNT_LIMIT}",
        labels=["table", "status"],
    )
    oldest = GaugeMetricFamily(
        "orderpost_oldest_due_seconds", "How long the longest-waiting row has been due", labels=["table"]
    )
    now = database_now()
    for model in apps.get_models():
        if issubclass(model, Deliverable):
            table = model._meta.db_table
            for status in UNFINISHED:
                found = model.objects.filter(status=status).order_by(_INDEXED[status])
                rows.add_metric([table, status.value], found.values("id")[:COUNT_LIMIT].count())
            first = model.objects.due().order_by("next_attempt_at").values_list("next_attempt_at").first()
            oldest.add_metric([table], (now - first[0]).total_seconds() if first else 0.0)
    yield from (rows, oldest)


@at_scrape
def partitions_ahead() -> Iterator[GaugeMetricFamily]:
    ahead = GaugeMetricFamily(
        "orderpost_partitions_ahead",
        "Partitions made after the present one; -1 when even that is missing",
        labels=["table"],
    )
    now = database_now()
    for model in partitions.partitioned_models():
        ahead.add_metric([model._meta.db_table], partitions.ahead_of(model=model, now=now))
    yield ahead


@at_scrape
def poll_age() -> Iterator[GaugeMetricFamily]:
    age = Heartbeat.age(name="poll")
    if age is not None:
        yield GaugeMetricFamily("orderpost_poll_age_seconds", "Since the outbox was last polled", value=age)
