"""`manage.py timeline ORDER`: print an order's story; with --archives, out of the archives, too."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.serializers.json import DjangoJSONEncoder

from orders.models import Order
from orders.timeline import Entry, timeline
from outbox.api.fields import parse_uuid
from outbox.core.postgres.connection import patient


class Command(BaseCommand):
    help = "Prints every change, e-mail, attempt, delivery, event and person's act of an order."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("order", help="the order's id or its reference")
        parser.add_argument("--archives", action="store_true", help="read the archives, too: minutes a year")
        parser.add_argument("--json", action="store_true", help="one JSON list instead of lines")

    def handle(self, *args: Any, order: str, archives: bool, **options: Any) -> None:
        with patient(
            seconds=settings.DATABASE_MAINTENANCE_TIMEOUT if archives else settings.DATABASE_TIMEOUT
        ):
            entries = timeline(order=_find(order), archives=archives)
        if options["json"]:
            shown = [dataclasses.asdict(entry) for entry in entries]
            self.stdout.write(json.dumps(shown, cls=DjangoJSONEncoder, indent=2, ensure_ascii=False))
            return
        before: dt.datetime | None = None
        for entry in entries:
            self.stdout.write(_line(entry, before))
            before = entry.at


def _find(text: str) -> Order:
    """Return the order with this id, or the only one with this reference."""
    id = parse_uuid(text)
    found = list(
        Order.objects.filter(id=id) if id else Order.objects.filter(reference=text).order_by("-id")[:2]
    )
    if not found:
        raise CommandError(f"There is no order {text}.")
    if len(found) > 1:
        raise CommandError(f"Several orders have the reference {text}: name one by its id.")
    return found[0]


def _line(entry: Entry, before: dt.datetime | None) -> str:
    gap = f"+{(entry.at - before).total_seconds():.1f} s" if before else ""
    by = f" ({entry.by})" if entry.by else ""
    return f"{entry.at:%Y-%m-%d %H:%M:%S.%f}"[:-3] + f"  {gap:>14}  {entry.kind:<8}  {entry.text}{by}"
