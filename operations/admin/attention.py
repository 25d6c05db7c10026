"""The first page's tiles about events, partitions, jobs, and all conditions without a tile of their own."""

from __future__ import annotations

from collections.abc import Iterator

from django.http import HttpRequest
from django.urls import reverse

from events.conditions import DEAD_EVENTS, INBOUND_DEAD_LETTERS
from events.models import DomainEvent, InboundDeadLetter
from operations.conditions import JOBS_FAILED, SUMS_LATE
from outbox.conditions import POLL_MISSING
from retention.conditions import PARTITION_HELD, UPKEEP_LATE
from runtime.conditions import declared
from web.admin.rights import shops_of
from web.admin.tiles import FrontPage, Tile, attention, sentences


@attention(30)
def events(request: HttpRequest) -> Iterator[Tile]:
    active = FrontPage.of(request).active
    if request.user.has_perm("events.view_domainevent"):
        page = reverse("admin:events_domainevent_changelist")
        yield Tile(
            label="dead events",
            url=f"{page}?state=dead-lettered",
            conditions=active(DEAD_EVENTS),
            help="Each one holds back its order's later events until an operator republishes or discards it.",
        )
        yield Tile(
            label="events waiting for a retry",
            url=f"{page}?state=failing",
            rows=DomainEvent.objects.blocked().filter(dead_lettered_at__isnull=True),
            help="The broker refused them. The later events of the same orders wait behind them.",
        )
    if request.user.has_perm("events.view_inbounddeadletter"):
        shops = shops_of(request)
        yield Tile(
            label="inbound dead letters",
            url=reverse("admin:events_inbounddeadletter_changelist"),
            # The condition counts those of all shops.
            conditions=active(INBOUND_DEAD_LETTERS) if shops.is_unbound else (),
            rows=None if shops.is_unbound else shops.only(InboundDeadLetter.objects.undecided()),
            help="Events of other services that could not be processed. Replay or discard them.",
        )


@attention(40)
def upkeep(request: HttpRequest) -> Iterator[Tile]:
    active = FrontPage.of(request).active
    if request.user.has_perm("retention.view_detachedpartition"):
        page = reverse("admin:retention_detachedpartition_changelist")
        yield Tile(
            label="rows that hold a partition",
            url=page,
            conditions=active(PARTITION_HELD),
            help="Unfinished rows in partitions past their hot days. The partitions wait for these rows.",
        )
    if request.user.has_perm("runtime.view_bulkjob"):
        yield Tile(
            label="failed jobs",
            url=reverse("admin:runtime_bulkjob_changelist") + "?state=failed",
            conditions=active(JOBS_FAILED),
            help="Background jobs that cannot continue. The page of each says why. Restart or stop it there.",
        )
    if request.user.has_perm("runtime.view_heartbeat"):
        page = reverse("admin:runtime_heartbeat_changelist")
        names = {POLL_MISSING: "poll", SUMS_LATE: "sums", UPKEEP_LATE: "partitions"}
        late = active(*names)
        yield Tile(
            label="late: " + ", ".join(names[job.condition] for job in late) if late else "regular jobs",
            url=page,
            words=str(len(late)) if late else "",
            conditions=late,
            help="The poll of the outbox, the sums of these charts, and the upkeep of partitions.",
        )


@attention(50)
def without_a_tile(request: HttpRequest) -> Iterator[Tile]:
    """Show the sentences of the conditions that name a list, to a user who may see it and all shops."""
    if not shops_of(request).is_unbound:
        return
    for active in FrontPage.of(request).active(*declared()):
        if page := active.condition.page:
            name, _, query = page.partition("?")
            app, _, model = name.partition(".")
            if request.user.has_perm(f"{app}.view_{model}"):
                url = reverse(f"admin:{app}_{model}_changelist")
                yield from sentences(f"{url}?{query}" if query else url, [active])
