"""The data of `manage.py demo`: orders that the services place, and with `--days` rows of a past history.

The history's rows have the correlation id `demo-history`, its orders a reference `DEMO-…`. Its addresses end
in `@demo.example.com`, which no mail can reach.
"""

from __future__ import annotations

import datetime as dt
import math
import random
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from django.conf import settings
from django.db.models import Model

from notifications.models import EmailNotification, Suppression
from notifications.rendering import render_email
from orders import services
from orders.emails import email_context
from orders.events import EVENTS, event_payload
from orders.models import Order
from outbox.database.ids import id_floor
from outbox.database.partitioned import PartitionedModel
from outbox.delivery.rows.fingerprint import fingerprint_of
from outbox.events.publishing.publish import shard_of
from outbox.models import InboundDeadLetter, OutboxEvent
from outbox.privacy import address_hash

MARK, DOMAIN = "demo-history", "demo.example.com"
#: The mailbox of `make run` answers 400 and 503 for recipients with these names.
REFUSED, DOWN = "refused", "down"
NAMES = ("Ada Byron", "Bo Larsen", "Chloé Petit", "Diego Ruiz", "Emma Vogel", "Farid Amin", "Grace Okoro")
LOCALES = (("en", "USD"), ("de", "EUR"), ("fr", "EUR"), ("es", "EUR"), ("en-GB", "GBP"))
PRODUCTS = (("Field notebook", 1290), ("Brass pen", 4500), ("Desk lamp", 8900), ("Wool blanket", 12900))
HOUR = dt.timedelta(hours=1)
#: Courses of an order: a weight, and for each change the hours since the change before. The last one gets
#: orders stuck.
COURSES: tuple[tuple[float, dict[str, float]], ...] = (
    (55, {"order.paid": 0.1, "order.completed": 14}),
    (15, {"order.paid": 0.1, "order.confirmed": 1, "order.completed": 40}),
    (10, {"order.paid": 0.2, "order.completed": 12}),
    (8, {}),
    (5, {"order.cancelled": 3}),
    (4, {"order.paid": 0.1, "order.completed": 14, "order.part_refunded": 70}),
    (3, {"order.paid": 0.1, "order.cancelled": 5, "order.refunded": 1}),
    (0.05, {"order.paid": 0.2}),
)
REFUND = 500
SERVICES: dict[str, Callable[..., Order]] = {
    "order.paid": services.pay_order,
    "order.confirmed": services.confirm_order,
    "order.completed": partial(services.complete_order, tracking_url="https://parcels.example.com/t/1"),
    "order.cancelled": partial(services.cancel_order, reason="Out of stock"),
    "order.part_refunded": partial(services.refund_order, amount=REFUND),
    "order.refunded": services.refund_order,
}
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


def place_and_move(number: int) -> None:
    """Place and change one order. The mailbox refuses every 25th recipient and answers 503 for every 40th."""
    kind = REFUSED if number % 25 == 0 else DOWN if number % 40 == 1 else "customer"
    order = services.place_order(
        user_id=uuid.uuid4(),
        email=f"{kind}-{number}@example.com",
        reference=f"D-{number:05}",
        **_purchase(random.Random(number)),  # noqa: S311 - sample data, not a secret
    )
    for change in COURSES[number % len(COURSES)][1]:
        SERVICES[change](order_id=order.id)


def place_one() -> Order:
    """Place the order of the README's first curls: 42.00 USD, not yet paid."""
    return services.place_order(
        user_id=uuid.uuid4(),
        email="ann@example.com",
        name="Ann",
        reference="A-1001",
        total_amount=4200,
        items=[{"sku": "pen", "name": "Brass pen", "quantity": 1, "unit_amount": 4200}],
    )


def _purchase(chance: random.Random) -> dict[str, Any]:
    locale, currency = chance.choice(LOCALES)
    bought = chance.sample(PRODUCTS, k=chance.randint(1, 2))
    items = [
        {"sku": product.split()[0].lower(), "name": product, "quantity": 1, "unit_amount": price}
        for product, price in bought
    ]
    total = sum(price for _, price in bought) + 590
    name = chance.choice(NAMES)
    return {"name": name, "locale": locale, "currency": currency, "items": items, "total_amount": total}


#: The rows of each table.
History = dict[type[Model], list[Any]]


def make_history(
    *, orders: int, days: int, now: dt.datetime, oldest: Mapping[PartitionedModel, dt.datetime]
) -> History:
    """Make `orders` orders of the last `days`, with their e-mails and events since `oldest` of each table."""
    chance = random.Random(7)  # noqa: S311 - sample data, not a secret
    history: History = defaultdict(list)
    mails = history[EmailNotification]
    for number, placed in enumerate(sorted(_times(orders, days=days, now=now, chance=chance)), start=1):
        for change, order, details in _changes(number, placed, now=now, chance=chance):
            if order.updated_at >= oldest[EmailNotification] and change in settings.NOTIFY_ON:
                mails.append(_mail(change, order, details, chance=chance))
                _settle(mails[-1], luck=len(mails) * GOLDEN % 1, now=now, chance=chance)
            if order.updated_at >= oldest[OutboxEvent]:
                history[OutboxEvent].append(_event(change, order, details, now=now, chance=chance))
        history[Order].append(order)
    suppressed = (address_hash(mail.recipient_email) for mail in mails if mail.status == "suppressed")
    history[Suppression] = [Suppression(address_hash=one, reason="hard_bounce") for one in suppressed]
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
        **_purchase(chance),
    )
    order.email = f"{order.name.split()[0].lower().replace('é', 'e')}.{number}@{DOMAIN}"
    yield "order.placed", order, {"items": [{"sku": item["sku"], "quantity": 1} for item in order.items]}
    ((_, course),) = chance.choices(COURSES, [weight for weight, _ in COURSES])
    for change, hours in course.items():
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
        return {"wasPaid": order.paid_at is not None}
    order.refunded_amount = REFUND if change == "order.part_refunded" else order.total_amount
    return {"amount": order.refunded_amount}


def _event(
    change: str, order: Order, details: dict[str, Any], *, now: dt.datetime, chance: random.Random
) -> OutboxEvent:
    event = OutboxEvent(
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
        event.retry_count = settings.EVENT_MAX_RETRIES
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
        mail.error_fingerprint = fingerprint_of(provider=mail.provider, error=text)
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
