"""What the first page says of events, partitions and regular jobs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse

from outbox.admin.front import Tile, View, attention
from outbox.core.ids import id_floor
from outbox.models import BulkJob, Heartbeat, InboundDeadLetter, OutboxEvent
from outbox.retention import partitions
from outbox.traffic import SUMMED

#: Seconds without a heartbeat of keep_partitions: its interval of a day and some hours.
PARTITIONS_LATE = 100_000.0


@attention(30)
def events(request: HttpRequest) -> Iterator[Tile]:
    if request.user.has_perm("outbox.view_outboxevent"):
        page = reverse("admin:outbox_outboxevent_changelist")
        yield Tile(
            label="dead events",
            url=f"{page}?state=dead-lettered",
            rows=OutboxEvent.objects.dead(),
            help="Each holds the later events of its order back, until somebody republishes or discards it.",
        )
        yield Tile(
            label="events waiting for a retry",
            url=f"{page}?state=failing",
            rows=OutboxEvent.objects.blocked().filter(dead_lettered_at__isnull=True),
            help="The broker refused them; later events of the same orders wait behind them.",
        )
    if request.user.has_perm("outbox.view_deadevent"):
        yield Tile(
            label="inbound dead letters",
            url=reverse("admin:outbox_inbounddeadletter_changelist"),
            rows=InboundDeadLetter.objects.unresolved().filter(replay_requested_at__isnull=True),
            help="Events of other services that could not be processed: replay or discard them.",
        )


@attention(40)
def upkeep(request: HttpRequest) -> Iterator[Tile]:
    view = View.of(request)
    if request.user.has_perm("outbox.view_retiredpartition"):
        yield Tile(
            label="rows that hold a partition",
            url=reverse("admin:outbox_detachedpartition_changelist"),
            rows=(_holding(view.now), []),
            help="Unfinished rows in partitions past their hot days. Finish them, and the partitions leave.",
        )
    if request.user.has_perm("outbox.view_bulkjob"):
        yield Tile(
            label="failed jobs",
            url=reverse("admin:outbox_bulkjob_changelist") + "?state=failed",
            rows=BulkJob.objects.failed(),
            help="Background jobs that cannot go on. Each one's page says why: restart or stop it there.",
        )
    if request.user.has_perm("outbox.view_heartbeat"):
        late = _late_jobs(view.now)
        yield Tile(
            label="late: " + ", ".join(late) if late else "regular jobs",
            url=reverse("admin:outbox_heartbeat_changelist"),
            words=str(len(late)) if late else "on time",
            bad=bool(late),
            help="The poll of the outbox, the sums of these charts, and the upkeep of partitions.",
        )


def _holding(now: dt.datetime) -> str:
    """Return SQL for the unfinished rows of partitions that are past their hot days."""
    parts = []
    for model in partitions.partitioned_models():
        rules = model.retention
        floor = id_floor(partitions.start_of(interval=rules.interval, when=now - model.hot()))
        for condition in rules.unfinished.values():
            parts.append(f"(SELECT 1 FROM {model._meta.db_table} WHERE id < '{floor}' AND {condition})")  # noqa: S608
    return " UNION ALL ".join(parts)


def _late_jobs(now: dt.datetime) -> list[str]:
    """Return the regular jobs that did not run when they should have."""
    limits = {
        "poll": ("poll", 2 * settings.POLL_INTERVAL),
        SUMMED: ("sums", 300.0),
        partitions.MADE: ("partitions", PARTITIONS_LATE),
    }
    ran = dict(Heartbeat.objects.filter(name__in=limits).values_list("name", "beat_at"))
    return [
        title
        for name, (title, seconds) in limits.items()
        if name not in ran or (now - ran[name]).total_seconds() > seconds
    ]
