"""The bulk actions of dead events (republish, discard) and of inbound dead letters (replay, discard)."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone

from events.models import DomainEvent, InboundDeadLetter
from events.models.states import REPLAYABLE
from runtime.database import periods
from runtime.jobs.actions import BatchResult, BulkAction, group_refusals, register
from runtime.models import AuditRow

#: The column of each model that an audit row does not need.
_LONG: dict[type[Any], str] = {DomainEvent: "payload", InboundDeadLetter: "envelope"}


def order_of(row: DomainEvent | InboundDeadLetter) -> uuid.UUID | None:
    """Return the id of the order that an event is about."""
    if isinstance(row, InboundDeadLetter):
        return row.order_id
    return row.aggregate_id if row.aggregate_type == "order" else None


def _changes(
    model: type[DomainEvent | InboundDeadLetter], verb: Callable[..., list[uuid.UUID]], done: str
) -> Callable[[Sequence[uuid.UUID]], BatchResult]:
    def change(ids: Sequence[uuid.UUID]) -> BatchResult:
        changed = verb(ids=ids)
        left = sorted({*ids} - {*changed})
        acts = [
            AuditRow(
                kind=AuditRow.Kind.EVENT,
                order_id=order_of(row),
                subject_type=model._meta.label_lower,
                subject_id=str(row.id),
                subject=f"{model._meta.verbose_name} {row.id}",
                act=f"{done}.",
            )
            for row in model._default_manager.filter(id__in=changed).defer(_LONG[model]).order_by("id")
        ]
        return BatchResult(acts, group_refusals((id, "its state changed") for id in left))

    return change


def _dead_events(params: Mapping[str, str], started_at: dt.datetime | None) -> QuerySet[Any]:
    """Return the dead events of a period, without those that died again after the job had begun."""
    rows = DomainEvent.objects.dead()
    if started_at is not None:
        rows = rows.filter(dead_lettered_at__lte=started_at)
    return periods.narrow_to_period(rows, params, now=started_at or timezone.now())


def _undecided(params: Mapping[str, str], started_at: dt.datetime | None) -> QuerySet[Any]:
    rows = InboundDeadLetter.objects.undecided()
    return periods.narrow_to_period(rows, params, now=started_at or timezone.now())


def _replayable(params: Mapping[str, str], started_at: dt.datetime | None) -> QuerySet[Any]:
    return _undecided(params, started_at).filter(REPLAYABLE.rows)


def _describe(what: str) -> Callable[[Mapping[str, str]], str]:
    def describe(params: Mapping[str, str]) -> str:
        words = [f"{name} {params[name]}" for name in periods.NAMES if params.get(name)]
        return ", ".join([what, *words])

    return describe


_EVENTS = (DomainEvent, "dead events", "events.resolve_domainevent", _dead_events)
_INBOUND = (InboundDeadLetter, "inbound dead letters", "events.resolve_inbounddeadletter")
for (model, what, permission, rows), name, title, verb, done in (
    (_EVENTS, "events.republish", "Republish", DomainEvent.objects.republish, "Republished"),
    (_EVENTS, "events.discard", "Discard", DomainEvent.objects.discard, "Discarded"),
    (
        (*_INBOUND, _replayable),
        "events.replay",
        "Replay",
        InboundDeadLetter.objects.request_replay,
        "Replayed",
    ),
    (
        (*_INBOUND, _undecided),
        "events.discard_inbound",
        "Discard",
        InboundDeadLetter.objects.discard,
        "Discarded",
    ),
):
    register(
        BulkAction(
            name=name,
            title=title,
            model=model,
            permission=permission,
            rows=rows,
            change=_changes(model, verb, done),
            describe=_describe(what),
        )
    )
