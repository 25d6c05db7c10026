"""Writes a demo's history into the tables, and sums it for the admin's charts."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence

from django.conf import settings
from django.db import connections, models, transaction

from notifications.models import EmailNotification, Suppression
from orders.management.demo_history import History, make_history
from orders.management.demo_mails import MARK, Row, outage_ends
from orders.models import Order
from outbox import traffic
from outbox.core.clock import database_now
from outbox.core.ids import new_id
from outbox.core.partitioned import PartitionedModel
from outbox.core.privacy import address_hash
from outbox.core.summed import Window
from outbox.models import InboundDeadLetter, OutboxEvent, TrafficSum
from outbox.retention import partitions

OWNER = "owner"


def write_history(*, orders: int, days: int) -> History:
    """Make and write the history of the last `days`. Rows whose partition would have left are left out."""
    now = database_now()
    history = make_history(
        orders=orders,
        days=days,
        now=now,
        events_from=_oldest(OutboxEvent, days=days),
        mails_from=_oldest(EmailNotification, days=days),
    )
    with transaction.atomic():
        _copy(Order, history.orders)
        _copy(EmailNotification, history.mails)
        _copy(OutboxEvent, history.events)
        Suppression.objects.bulk_create(
            Suppression(address_hash=address_hash(mail["recipient_email"]), reason="hard_bounce")
            for mail in history.mails
            if mail["status"] == "suppressed"
        )
        InboundDeadLetter.objects.bulk_create(_inbound(now))
    with connections[OWNER].cursor() as cursor:
        cursor.execute("VACUUM ANALYZE orders, email_notifications, outbox_events")
    _sum(days=days, now=now)
    return history


def _oldest(model: PartitionedModel, *, days: int) -> dt.datetime:
    """Make the partitions of the last `days` that would still be attached; return the oldest one's start."""
    back = days + 1 if model.retention.interval == "day" else days // 28 + 1
    partitions.ensure(model=model, using=OWNER, behind=back, ahead=0)
    return partitions.attached(model=model, using=OWNER)[0].since


def _copy(model: type[models.Model], rows: Sequence[Row]) -> None:
    """Write rows by COPY. What no row names keeps the database's default; a missing value is the field's."""
    names = {name for row in rows for name in row}
    fields = [
        field
        for field in model._meta.concrete_fields
        if field.column in names or field.db_default is models.NOT_PROVIDED
    ]
    quote = connections["default"].ops.quote_name
    columns = ", ".join(quote(str(field.column)) for field in fields)
    with connections["default"].cursor() as cursor:
        statement = f"COPY {quote(model._meta.db_table)} ({columns}) FROM STDIN"
        with cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row([row.get(str(field.column), _empty(field)) for field in fields])


def _empty(field: models.Field[object, object]) -> object:
    if field.null:
        return None
    value = field.get_default()
    return "[]" if value == [] else "{}" if value == {} else value


def _inbound(now: dt.datetime) -> list[InboundDeadLetter]:
    """Return inbound events that could not be processed, for two reasons."""
    reasons = (
        ("payment.payment.succeeded.v1", "no such order"),
        ("payment.payment.succeeded.v1", "no such order"),
        ("warehouse.stock.insufficient.v1", "data.orderId is no UUID"),
    )
    return [
        InboundDeadLetter(
            topic=topic,
            key=MARK,
            event_id=uuid.uuid4(),
            consumer="orders",
            envelope="{}",
            error=error,
            failed_at=now - dt.timedelta(hours=5 * number + 1),
            id=new_id(),
        )
        for number, (topic, error) in enumerate(reasons)
    ]


def _sum(*, days: int, now: dt.datetime) -> None:
    """Sum the history as the minutes would have been, with the breakers of its outages."""
    minute = now.replace(second=0, microsecond=0)
    hour = minute.replace(minute=0)
    kept = min(traffic.KEEP_MINUTES, dt.timedelta(days=days))
    for span, since, until in (
        (TrafficSum.HOUR, hour - dt.timedelta(days=days), hour + traffic.HOUR),
        (TrafficSum.MINUTE, minute - kept, minute),
    ):
        sums = traffic.read_window(Window(since=since, until=until, span=span))
        name = f"open:{settings.EMAIL_PROVIDERS[0]}"
        traffic.store(
            span,
            {
                start: traffic.Sums(one.counts, one.spreads, {name: _minutes_open(start, span=span, now=now)})
                for start, one in sums.items()
            },
        )


def _minutes_open(start: dt.datetime, *, span: int, now: dt.datetime) -> int:
    return sum(
        outage_ends(start + dt.timedelta(minutes=minute), now) is not None for minute in range(span // 60)
    )
