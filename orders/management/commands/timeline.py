"""`manage.py timeline ORDER`: print an order's timeline (orders.timeline)."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.serializers.json import DjangoJSONEncoder

from notifications.changes.trail import TimelineEntry
from orders.models import Order
from orders.timeline import read_timeline
from runtime.database.ids import parse_uuid

MOST_LISTED = 20


class Command(BaseCommand):
    help = "Print every change, e-mail, attempt, delivery, event and act of a person for one order."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("order", help="the order's id or its reference")
        parser.add_argument("--json", action="store_true", help="print one JSON list instead of lines")

    def handle(self, *args: Any, order: str, **options: Any) -> None:
        found_order = find_order(order)
        if found_order is None:
            raise CommandError(f"There is no order {order}. Give an order's id or reference.")
        entries = read_timeline(order=found_order)
        if options["json"]:
            shown = [dataclasses.asdict(entry) for entry in entries]
            self.stdout.write(json.dumps(shown, cls=DjangoJSONEncoder, indent=2, ensure_ascii=False))
            return
        before: dt.datetime | None = None
        for entry in entries:
            self.stdout.write(_line(entry, before))
            before = entry.at


def find_order(text: str) -> Order | None:
    """Return the order with this id or this reference, or None.

    If several orders have the reference, raise `CommandError` with a list of them, the newest first.
    """
    id = parse_uuid(text)
    orders = Order.objects.filter(id=id) if id else Order.objects.filter(reference=text)
    newest = list(orders.order_by("-created_at", "-id")[: MOST_LISTED + 1])
    if len(newest) > 1:
        lines = [
            f"{order.id}  {order.source or 'own order':<12}  placed {order.created_at:%Y-%m-%d %H:%M}"
            f"  {order.status}"
            for order in newest[:MOST_LISTED]
        ]
        more = ["…"] if len(newest) > MOST_LISTED else []
        raise CommandError(
            "\n".join([f"Several orders have the reference {text}. Give the id of one:", *lines, *more])
        )
    return newest[0] if newest else None


def _line(entry: TimelineEntry, before: dt.datetime | None) -> str:
    gap = f"+{(entry.at - before).total_seconds():.1f} s" if before else ""
    by = f" ({entry.by})" if entry.by else ""
    return f"{entry.at:%Y-%m-%d %H:%M:%S.%f}"[:-3] + f"  {gap:>14}  {entry.kind:<8}  {entry.text}{by}"
