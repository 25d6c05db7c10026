"""A history for the pictures of the admin's charts and lists: rows of the past, written by COPY.

Its rows have the correlation id `demo-history`, its orders a reference `DEMO-…`. Its addresses end in
`@demo.example.com`, which no mail can reach.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import random
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from django.conf import settings
from django.db import connections, transaction
from django.db.models import Model
from django.db.models.expressions import DatabaseDefault

from operations.demo import REFUND, sample_purchase
from orders.events import event_payload
from retention.partitioned import partitioned_models
from runtime.database.partitions import attached
from tests.kit.months import make_partition
from tests.kit.words import (
    EVENTS,
    DomainEvent,
    EmailNotification,
    InboundDeadLetter,
    Order,
    PartitionedModel,
    Suppression,
    TrafficSum,
    Window,
    address_hash,
    email_context,
    id_floor,
    minutes,
    partitions,
    read_database_time,
    relay,
    render_email,
    shard_of,
)

MARK, DOMAIN = "demo-history", "demo.example.com"
HOUR = dt.timedelta(hours=1)
#: Courses of an order: the changes after it was placed.
COURSES: tuple[tuple[str, ...], ...] = (
    ("order.paid", "order.completed"),
    ("order.paid", "order.confirmed", "order.completed"),
    ("order.paid", "order.completed"),
    (),
    ("order.cancelled",),
    ("order.paid", "order.completed", "order.part_refunded"),
    ("order.paid", "order.cancelled", "order.refunded"),
    ("order.paid",),
)
#: For each of `COURSES` a weight, and for each change the hours since the change before. The last course gets
#: orders stuck.
PACES: tuple[tuple[float, tuple[float, ...]], ...] = (
    (55, (0.1, 14)),
    (15, (0.1, 1, 40)),
    (10, (0.2, 12)),
    (8, ()),
    (5, (3,)),
    (4, (0.1, 14, 70)),
    (3, (0.1, 5, 1)),
    (0.05, (0.2,)),
)
#: event -> the order's column with the time of that change
TIMES = {"order.paid": "paid_at", "order.confirmed": "stock_reserved_at", "order.completed": "completed_at"}
#: Answers of the provider that make e-mails dead letters.
CAUSES = (
    "400: Does not contain a valid address: {address}",
    "400: The from address does not match a verified Sender Identity",
    "550: 5.7.1 Message rejected by policy, id {token}",
)
#: The share of the outgoing events that the broker refused.
DEAD_EVENTS = 0.0004
#: Errors of the inbound dead letters.
ERRORS = ("no such order", "no such order", "data.orderId is not a UUID")
#: Multiples of this number, modulo 1, spread evenly, so any few hundred e-mails in a row have every outcome.
GOLDEN = (math.sqrt(5) - 1) / 2
#: Outages of the first provider: how many hours ago each began, and how many hours it lasted.
OUTAGES = ((7.0, 0.7), (52.0, 1.6), (211.0, 2.4))


#: The rows of each table.
History = dict[type[Model], list[Any]]


def make_history(
    *, orders: int, days: int, now: dt.datetime, oldest: Mapping[PartitionedModel, dt.datetime]
) -> History:
    """Make `orders` orders of the last `days`, with their e-mails and events since `oldest` of each table."""
    chance = random.Random(7)
    history: History = defaultdict(list)
    mails = history[EmailNotification]
    for number, placed in enumerate(sorted(_times(orders, days=days, now=now, chance=chance)), start=1):
        for change, order, details in _changes(number, placed, now=now, chance=chance):
            if order.updated_at >= oldest[EmailNotification] and change in settings.NOTIFY_ON:
                mails.append(_mail(change, order, details, chance=chance))
                _settle(mails[-1], luck=len(mails) * GOLDEN % 1, now=now, chance=chance)
            if order.updated_at >= oldest[DomainEvent]:
                history[DomainEvent].append(_event(change, order, details, now=now, chance=chance))
        history[Order].append(order)
    suppressed = (address_hash(mail.recipient_email) for mail in mails if mail.status == "suppressed")
    history[Suppression] = [Suppression(address_hash=hashed, reason="hard_bounce") for hashed in suppressed]
    for hours, error in enumerate(ERRORS, start=1):
        dead = InboundDeadLetter(key=MARK, consumer="orders", envelope="{}", error=error)
        dead.topic, dead.event_id = "payment.payment.succeeded.v1", uuid.uuid4()
        dead.failed_at = now - 5 * hours * HOUR
        history[InboundDeadLetter].append(dead)
    return history


def outage_end(when: dt.datetime, *, now: dt.datetime) -> dt.datetime | None:
    """Return the end of the outage at `when`, or None outside an outage."""
    spans = ((now - began * HOUR, now - (began - lasted) * HOUR) for began, lasted in OUTAGES)
    return next((end for start, end in spans if start <= when < end), None)


def _times(count: int, *, days: int, now: dt.datetime, chance: random.Random) -> Iterator[dt.datetime]:
    """Yield `count` times of the last `days`, few of them at night."""
    while count:
        when = now - dt.timedelta(days=days * chance.random(), seconds=20)
        if chance.random() < 0.55 - 0.45 * math.cos((when.hour + when.minute / 60 - 3) / 24 * 2 * math.pi):
            count -= 1
            yield when


def _id(when: dt.datetime, chance: random.Random) -> uuid.UUID:
    """Return a UUIDv7 for a past time."""
    return uuid.UUID(
        int=id_floor(when).int | 7 << 76 | chance.getrandbits(12) << 64 | 2 << 62 | chance.getrandbits(62)
    )


def _changes(
    number: int, placed: dt.datetime, *, now: dt.datetime, chance: random.Random
) -> Iterator[tuple[str, Order, dict[str, Any]]]:
    """Yield the event's name, the order and the event's details for each change of one order up to `now`."""
    order = Order(
        id=_id(placed, chance),
        user_id=uuid.UUID(int=chance.getrandbits(128), version=4),
        reference=f"DEMO-{number:06}",
        correlation_id=MARK,
        created_at=placed,
        updated_at=placed,
        **sample_purchase(chance),
    )
    order.email = f"{order.name.split()[0].lower().replace('é', 'e')}.{number}@{DOMAIN}"
    yield "order.placed", order, {"items": [{"sku": item["sku"], "quantity": 1} for item in order.items]}
    ((course, (_, pace)),) = chance.choices(
        list(zip(COURSES, PACES, strict=True)), [weight for weight, _ in PACES]
    )
    for change, hours in zip(course, pace, strict=True):
        at = order.updated_at + hours * chance.uniform(0.3, 1.7) * HOUR
        if at > now - dt.timedelta(seconds=10):
            return
        order.updated_at, order.version = at, order.version + 1
        yield change, order, _apply(change, order)


def _apply(change: str, order: Order) -> dict[str, Any]:
    """Change an order as its service would. Return the event's details."""
    order.status = change.removeprefix("order.")
    if field := TIMES.get(change):
        setattr(order, field, order.updated_at)
        return {}
    if change == "order.cancelled":
        return {"wasPaid": order.paid_at is not None, "hasReason": False}
    order.refunded_amount = REFUND if change == "order.part_refunded" else order.total_amount
    return {"amount": order.refunded_amount}


def _event(
    change: str, order: Order, details: dict[str, Any], *, now: dt.datetime, chance: random.Random
) -> DomainEvent:
    event = DomainEvent(
        id=_id(order.updated_at, chance),
        aggregate_type="order",
        aggregate_id=order.id,
        event_type=EVENTS[change].topic,
        sequence=order.version,
        payload=event_payload(order=order, details=details),
        metadata={"traceId": None, "correlationId": MARK, "idempotencyKey": None, "userId": None},
        shard=shard_of(order.id),
        created_at=order.updated_at,
        published_at=order.updated_at + dt.timedelta(milliseconds=chance.uniform(8, 90)),
    )
    if chance.random() < DEAD_EVENTS and event.created_at < now - HOUR:
        event.published_at, event.dead_lettered_at = None, event.created_at + HOUR / 6
        event.retry_count = relay.MAX_RETRIES
        event.last_error = "the broker refused it: message too large"
    return event


def _mail(change: str, order: Order, details: dict[str, Any], *, chance: random.Random) -> EmailNotification:
    shown = {"amount": details.get("amount"), "was_paid": details.get("wasPaid", False)}
    text = render_email(
        event_type=change, locale=order.locale, context=email_context(order=order, change=shown)
    )
    return EmailNotification(
        id=_id(order.updated_at, chance),
        order_id=order.id,
        event_type=change,
        recipient_email=order.email,
        to_name=order.name,
        locale=order.locale,
        subject=text.subject,
        body=text.body_html,
        body_text=text.body_text,
        idempotency_key=f"{order.id}:{change}:{order.version}",
        correlation_id=MARK,
        max_retries=settings.MAX_RETRIES,
        created_at=order.updated_at,
        updated_at=order.updated_at,
        next_attempt_at=order.updated_at,
        provider=settings.EMAIL_PROVIDERS[0],
    )


def _settle(mail: EmailNotification, *, luck: float, now: dt.datetime, chance: random.Random) -> None:
    """Give an e-mail the state that it would have now. `luck`, from 0 to 1, chooses the outcome."""
    at = mail.created_at

    def error(when: dt.datetime, text: str, outcome: str) -> dict[str, str]:
        code = text.partition(":")[0]
        return {
            "at": when.isoformat(),
            "provider": mail.provider,
            "outcome": outcome,
            "code": code,
            "text": text,
        }

    if luck < 0.004:
        text = chance.choice(CAUSES).format(address=mail.recipient_email, token=mail.id.hex[:12])
        mail.status, mail.last_error = ("dead_lettered" if luck < 0.0032 else "discarded"), text
        mail.errors = [error(at, text, "permanent")]
    elif luck < 0.009:
        mail.status, mail.provider, mail.last_error = "suppressed", "", "the address bounced"
    elif luck < 0.015 and 2 * HOUR < now - at < 24 * HOUR:  # waits for a later attempt
        mail.status, mail.last_error = "failed", "500: Internal Server Error"
        mail.errors = [error(at + number * HOUR / 3, mail.last_error, "transient") for number in range(3)]
        mail.updated_at, mail.next_attempt_at = at + HOUR * 2 / 3, now + 3 * HOUR
    else:
        mail.status, mail.provider_message_id = "sent", f"demo.{mail.id.hex[-12:]}"
        sent = at + dt.timedelta(seconds=math.exp(chance.gauss(-2.6, 0.6)))
        if end := outage_end(at, now=now):
            mail.errors = [error(at, "503: Service Unavailable", "transient")]
            sent = min(end + chance.random() * HOUR / 60, now)
        mail.sent_at = mail.updated_at = sent
        arrived = sent + dt.timedelta(seconds=math.exp(chance.gauss(1.2, 0.9)))
        if arrived < now:
            setattr(mail, "bounced_at" if chance.random() < 0.012 else "delivered_at", arrived)


def write_history(*, orders: int, days: int) -> History:
    """Write the history of the last `days` and its sums, without rows whose partition would be detached."""
    now = read_database_time()
    oldest = {model: _oldest(model, days=days) for model in partitioned_models()}
    history = make_history(orders=orders, days=days, now=now, oldest=oldest)
    with transaction.atomic():
        for model, rows in history.items():
            _copy(model, sorted(rows, key=attrgetter("id")))
    with connections["owner"].cursor() as cursor:
        cursor.execute("VACUUM ANALYZE orders, email_notifications, outbox_events")
    minute = now.replace(second=0, microsecond=0)
    hour, past = minute.replace(minute=0), dt.timedelta(days=days)
    _sum(TrafficSum.HOUR, hour - past, hour + minutes.HOUR, now=now)
    _sum(TrafficSum.MINUTE, minute - min(minutes.KEEP_MINUTES, past), minute, now=now)
    return history


def _copy(model: type[Model], rows: Sequence[Model]) -> None:
    """Write rows by COPY, because INSERT takes more than twice the time."""
    if not rows:
        return
    connection, everything = connections["default"], model._meta.concrete_fields
    fields = [
        field for field in everything if not isinstance(getattr(rows[0], field.attname), DatabaseDefault)
    ]
    columns = ", ".join(connection.ops.quote_name(str(field.column)) for field in fields)
    statement = f"COPY {model._meta.db_table} ({columns}) FROM STDIN"
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            values = [field.get_db_prep_save(getattr(row, field.attname), connection) for field in fields]
            copy.write_row(values)


def _oldest(model: PartitionedModel, *, days: int) -> dt.datetime:
    """Make the partitions of the last `days` that would still be attached. Return the start of the oldest."""
    back = days + 1 if model.retention.interval == "day" else days // 28 + 1
    now, present = read_database_time(), attached(model=model, using="owner")
    names = {partition.name for partition in present}
    for steps in range(2, back + 1):  # migrate has made the one before the present one
        partition = partitions.partition_at(model=model, when=now, steps=-steps)
        if partition.until + model.hot() > now and partition.name not in names:
            make_partition(model, back=steps)
    return attached(model=model, using="owner")[0].since


def _sum(span: int, since: dt.datetime, until: dt.datetime, *, now: dt.datetime) -> None:
    """Write the sums of the history, with an open breaker during its outages. `span` is in seconds."""
    sums = minutes.read_window(Window(since=since, until=until, span=span))
    breaker = f"open:{settings.EMAIL_PROVIDERS[0]}"
    for start, summed in sums.items():
        minutes_open = span // 60 if outage_end(start, now=now) else 0
        sums[start] = dataclasses.replace(summed, samples={breaker: minutes_open})
    minutes.store(span, sums)
