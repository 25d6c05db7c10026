"""Compare a restored database with the logs of the time that it lost.

The logs prove which e-mails a provider accepted and which events the broker has. They also name the changes
that the database lost. A line that is read twice has its effect once.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import structlog
from django.db import transaction
from django.db.models import Model

from events.models import DomainEvent, ProcessedEvent
from notifications.changes.restored import Sent, hold_unproven, settle_logged
from notifications.changes.settle import set_aside_replaced
from notifications.models import EmailNotification
from notifications.states.transitions import EndedBy
from operations import pauses
from operations.lost_changes import Lost, LostChanges, merged
from orders.models import Order
from retention.models import Erasure
from runtime.audit import command_actor, record
from runtime.database.ids import parse_uuid
from runtime.models import AuditRow, BulkJob, Pause

log = structlog.get_logger(__name__)

#: How far the clocks of the processes and of the database may differ. Lines from before `since` less this are
#: skipped.
SLACK = dt.timedelta(minutes=10)
BATCH = 1000

Line = Mapping[str, Any]


class NotPaused(Exception):
    """`manage.py pause --restored-to` has not paused the delivery."""


@dataclasses.dataclass(slots=True)
class Report:
    """The result of a comparison.

    sent        e-mails that the logs proved sent
    published   events that the logs proved published
    held        e-mails that became dead letters because no log proves whether they were sent, or because one
                says that they were given up
    malformed   lines that could not be read
    lost        the `lost_count` changes that the database does not have, oldest first; iterate only once
    """

    sent: int = 0
    published: int = 0
    held: int = 0
    malformed: int = 0
    lost_count: int = 0
    lost: Iterable[Lost] = ()


def reconcile(*, lines: Iterable[Line], since: dt.datetime | None = None) -> Report:
    """Settle what the log lines prove, and hold the unproven e-mails for a person.

    `since` is the moment to which the database was restored, by default that of `manage.py pause
    --restored-to`. Raise `NotPaused` unless that command has paused the delivery.
    """
    pause = Pause.objects.filter(part=Pause.Part.DELIVERY, restored_to__isnull=False).first()
    if pause is None or pause.restored_to is None:
        raise NotPaused("pause first: manage.py pause --all --restored-to TIME")
    restored = f"restored to {pause.restored_to:%Y-%m-%d %H:%M:%S} UTC"
    with transaction.atomic():
        act = f"Began to compare the database, {restored}, with the logs."
        record(AuditRow(kind=AuditRow.Kind.SETUP, act=act, subject="the database"), by=command_actor())
    reader = _LogReader(since=since or pause.restored_to, restored=restored)
    for line in lines:
        reader.read_line(line)
    reader.flush()
    report = reader.report
    unproven = f"{restored}; no log shows whether it was sent since"
    report.held += hold_unproven(until=pause.paused_at, reason=unproven)
    report.lost_count, report.lost = len(reader.lost), _with_orders(reader.lost)
    stopped = "the database was restored; start a new job for the rows that still need it"
    BulkJob.objects.stop_restored(until=pause.paused_at, error=stopped)
    pauses.reconcile()
    log.info(
        "restored database compared with logs",
        sent=report.sent,
        published=report.published,
        held=report.held,
        lost=report.lost_count,
    )
    return report


class _LogReader:
    """Collects lines and compares them with the database, `BATCH` changes at a time."""

    def __init__(self, *, since: dt.datetime, restored: str) -> None:
        self.report = Report()
        self._restored = restored  # begins the reasons why e-mails are held
        self.lost = LostChanges()
        self._since = since - SLACK
        self._notes: dict[tuple[str, str], Lost] = {}
        self._sent: dict[uuid.UUID, Sent] = {}
        self._originals: set[uuid.UUID] = set()  # of which the database lost a copy
        self._given_up: set[uuid.UUID] = set()
        self._published: set[uuid.UUID] = set()

    def read_line(self, line: Line) -> None:
        """Note the change that a line records. Ignore lines of other log events."""
        if (change := _KINDS.get(line.get("event", ""))) is None:
            return
        kind, name = change
        try:
            if dt.datetime.fromisoformat(line["timestamp"]) < self._since:
                return
            id = str(line[name]) if kind == "erasure" else str(uuid.UUID(line[name]))
        except (KeyError, ValueError, TypeError, AttributeError):
            self.report.malformed += 1
            return
        self._note(kind, id, line)
        if kind == "e-mail" and (original := parse_uuid(line.get("resend_of"))):
            self._originals.add(original)
        if kind == "e-mail" and line.get("now") == "sent":
            sent = Sent(str(line.get("provider", "")), str(line.get("provider_message_id", "")))
            self._sent[uuid.UUID(id)] = sent
        elif kind == "e-mail" and line.get("ended_by") in (EndedBy.PERSON, EndedBy.ERASURE):
            self._given_up.add(uuid.UUID(id))
        elif kind == "event":
            self._published.add(uuid.UUID(id))
        if len(self._notes) >= BATCH:
            self.flush()

    def _note(self, kind: str, id: str, line: Line) -> None:
        at = line["timestamp"]
        note: Lost = {"kind": kind, "id": id, "first_at": at, "last_at": at}
        for name in ("order_id", "event_type", "topic", "correlation_id", "resend_of", "shop_copy_of"):
            if line.get(name):
                note[name] = line[name]
        if kind == "e-mail":
            note["now"] = line.get("now", "")
        earlier = self._notes.get((kind, id))
        self._notes[kind, id] = note if earlier is None else merged(earlier, note)

    def flush(self) -> None:
        """Settle the collected changes, and keep those that the database does not have."""
        self.report.sent += settle_logged(sent=self._sent)
        decided = {"a copy was made since": self._originals, "it was given up since": self._given_up}
        for why, emails in decided.items():
            held = set_aside_replaced(ids=emails, reason=f"{self._restored}; {why}")
            self.report.held += len(held)
        waiting = DomainEvent.objects.unpublished().filter(id__in=list(self._published))
        if ids := list(waiting.values_list("id", flat=True)):
            DomainEvent.objects.mark_published(ids=ids)
            self.report.published += len(ids)
        for kind in sorted({kind for kind, _ in self._notes}):
            stored: set[str] = set()
            if kind in _TABLES:
                stored = _known(*_TABLES[kind], [id for noted, id in self._notes if noted == kind])
            for key, note in self._notes.items():
                if key[0] == kind and key[1] not in stored:
                    self.lost.add(note)
        self._notes, self._sent = {}, {}
        self._published, self._originals, self._given_up = set(), set(), set()


#: log event -> the kind of change that it records, and the field that names the changed thing
_KINDS = {
    "notification changed": ("e-mail", "notification_id"),
    "event published": ("event", "event_id"),
    "event taken": ("inbound event", "event_id"),
    "erasure started": ("erasure", "address_hash"),
    "person erased": ("erasure", "address_hash"),
    "order's address corrected": ("correction", "order_id"),
}
#: kind -> the table and column that show whether the database has a change. No table shows corrections, so
#: every correction counts as lost.
_TABLES: dict[str, tuple[type[Model], str]] = {
    "e-mail": (EmailNotification, "id"),
    "event": (DomainEvent, "id"),
    "inbound event": (ProcessedEvent, "event_id"),
    "erasure": (Erasure, "address_hash"),
}


def _known(model: type[Model], column: str, ids: list[str]) -> set[str]:
    """Return those of `ids` that exist in the column."""
    if not ids:
        return set()
    rows = model._default_manager.filter(**{f"{column}__in": ids}).values_list(column, flat=True)
    return {str(id) for id in rows}


def _with_orders(lost: Iterable[Lost]) -> Iterator[Lost]:
    """Yield lost changes. Add `order_known`, whether the database has the order, to those with an order."""
    rows = iter(lost)
    while part := list(itertools.islice(rows, BATCH)):
        stored = _known(
            Order, "id", sorted({str(change["order_id"]) for change in part if change.get("order_id")})
        )
        for change in part:
            yield (
                {**change, "order_known": change["order_id"] in stored} if change.get("order_id") else change
            )
