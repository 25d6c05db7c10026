"""`manage.py resend_events`: send published events again."""

from __future__ import annotations

import datetime as dt
import uuid
from argparse import ArgumentTypeError
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from events.models import DomainEvent
from events.publishing.resend import resend_events, select_events
from events.transports import BrokerAway
from runtime.audit import command_actor, record
from runtime.models import AuditRow


def _time(text: str) -> dt.datetime:
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is not a time such as 2026-11-21T10:00:00Z") from error
    return time if time.tzinfo else time.replace(tzinfo=dt.UTC)


class Command(BaseCommand):
    help = (
        "Publish published events again. They keep their ids, so consumers drop those that they have "
        "processed. "
        "The command finds only events in attached partitions (EVENT_HOT_DAYS)."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--id", action="append", default=[], type=uuid.UUID, help="an event's id (repeatable)"
        )
        parser.add_argument(
            "--since", type=_time, help="events from this time on (ISO 8601, UTC if it has no zone)"
        )
        parser.add_argument("--until", type=_time, help="events before this time")
        parser.add_argument("--type", action="append", default=[], help="events of this topic (repeatable)")
        parser.add_argument("--order", type=uuid.UUID, help="events of this order (or other aggregate)")
        parser.add_argument("--dry-run", action="store_true", help="only print the number of events")

    def handle(self, *args: Any, **options: Any) -> None:
        named = {name: options[name] for name in ("id", "since", "until", "type", "order")}
        if not any(named.values()):
            raise CommandError("Say which events: --id, --since, --until, --type or --order.")
        events = select_events(
            events=DomainEvent.objects.using("direct").published(),
            ids=options["id"],
            since=options["since"],
            until=options["until"],
            types=options["type"],
            aggregate_id=options["order"],
        )
        if options["dry_run"]:
            self.stdout.write(f"{events.count()} published events.")
            return
        try:
            result = resend_events(events=events)
        except BrokerAway as error:
            words = "Some may have been sent. It is safe to run this again."
            raise CommandError(f"The broker does not take them now ({error}). {words}") from error
        filters = " ".join(f"{name}={value}" for name, value in named.items() if value)
        with transaction.atomic():
            said = f"Sent {result.sent} published events again: {filters}"
            record(
                AuditRow(kind=AuditRow.Kind.EVENT, act=said, order_id=options["order"], subject="events"),
                by=command_actor(),
            )
        for event_id, reason in result.refused.items():
            self.stderr.write(f"{event_id}: {reason}")
        self.stdout.write(f"Sent: {result.sent}. Refused: {len(result.refused)}.")
