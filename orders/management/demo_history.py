"""Believable history for `manage.py demo --days`: written as rows of the past, through no service.

The rows carry the correlation id `demo-history`, orders a reference `DEMO-…`, and every address ends in
`@demo.example.com`, which no mail can reach.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
import random
import uuid
from collections.abc import Iterator
from typing import Any

from django.conf import settings

from orders.events import EVENTS, event_payload
from orders.management.demo_mails import MARK, Row, id_at, make_mail
from orders.models import Order
from outbox.events.publish import shard_of

DOMAIN = "demo.example.com"
NAMES = ("Ada Byron", "Bo Larsen", "Chloé Petit", "Diego Ruiz", "Emma Vogel", "Farid Amin", "Grace Okoro")
LOCALES = (("en", "USD"), ("en", "USD"), ("en-GB", "GBP"), ("de", "EUR"), ("fr", "EUR"), ("es", "EUR"))
PRODUCTS = (("Field notebook", 1290), ("Brass pen", 4500), ("Desk lamp", 8900), ("Wool blanket", 12900))
BASKETS = ((0,), (1,), (0, 1), (2,), (1, 3))
#: What happens to an order: each change, and the hours after the one before it. Orders take these by weight.
COURSES: tuple[tuple[int, tuple[tuple[str, float], ...]], ...] = (
    (55, (("order.paid", 0.1), ("order.completed", 30.0))),
    (15, (("order.paid", 0.1), ("order.confirmed", 1.0), ("order.completed", 40.0))),
    (10, (("order.paid", 0.2),)),
    (8, ()),
    (5, (("order.cancelled", 3.0),)),
    (4, (("order.paid", 0.1), ("order.completed", 20.0), ("order.part_refunded", 70.0))),
    (3, (("order.paid", 0.1), ("order.cancelled", 5.0), ("order.refunded", 1.0))),
)
STATUS = {name: name.removeprefix("order.") for name in EVENTS} | {"order.placed": "pending"}


@dataclasses.dataclass(slots=True)
class History:
    """The rows of a history, by table, oldest first."""

    orders: list[Row] = dataclasses.field(default_factory=list)
    mails: list[Row] = dataclasses.field(default_factory=list)
    events: list[Row] = dataclasses.field(default_factory=list)


def make_history(
    *,
    orders: int,
    days: int,
    now: dt.datetime,
    events_from: dt.datetime,
    mails_from: dt.datetime,
    seed: int = 7,
) -> History:
    """Make `orders` orders of the last `days`, with the e-mails and events that are still in their tables."""
    chance = random.Random(seed)  # noqa: S311 - sample data, not a secret
    history = History()
    for number, placed in enumerate(sorted(_times(orders, days=days, now=now, chance=chance)), start=1):
        for name, order, at, details in _changes(number, placed, now=now, chance=chance):
            if at >= mails_from and name in settings.NOTIFY_ON:
                number = len(history.mails)
                history.mails.append(
                    make_mail(name, order, at, details, number=number, now=now, chance=chance)
                )
            if at >= events_from:
                history.events.append(_event(name, order, at, details, now=now, chance=chance))
        history.orders.append(_order_row(order, at))
    history.mails.sort(key=lambda row: row["id"])
    history.events.sort(key=lambda row: row["id"])
    return history


def _times(count: int, *, days: int, now: dt.datetime, chance: random.Random) -> Iterator[dt.datetime]:
    """Yield times of the last days, few of them at night."""
    while count:
        when = now - dt.timedelta(days=days * chance.random(), seconds=20)
        if chance.random() < 0.55 - 0.45 * math.cos((when.hour + when.minute / 60 - 3) / 24 * 2 * math.pi):
            count -= 1
            yield when


def _changes(
    number: int, placed: dt.datetime, *, now: dt.datetime, chance: random.Random
) -> Iterator[tuple[str, Order, dt.datetime, dict[str, Any]]]:
    """Yield an order after each of its changes so far, with the event's name, time and details."""
    name = chance.choice(NAMES)
    locale, currency = chance.choice(LOCALES)
    lines = [PRODUCTS[index] for index in chance.choice(BASKETS)]
    items = [
        {"sku": one.split()[0].lower(), "name": one, "quantity": 1, "unit_amount": price}
        for one, price in lines
    ]
    order = Order(
        id=id_at(placed, chance),
        user_id=uuid.UUID(int=chance.getrandbits(128), version=4),
        email=f"{name.split()[0].lower().replace('é', 'e')}.{number}@{DOMAIN}",
        name=name,
        locale=locale,
        reference=f"DEMO-{number:06}",
        items=items,
        total_amount=sum(price for _, price in lines) + 590,
        currency=currency,
        correlation_id=MARK,
        created_at=placed,
    )
    bought = [{"sku": item["sku"], "quantity": 1} for item in items]
    yield "order.placed", order, placed, {"items": bought}
    at = placed
    (steps,) = chance.choices([steps for _, steps in COURSES], [weight for weight, _ in COURSES])
    for step, hours in steps:
        at += dt.timedelta(hours=hours * (0.3 + 1.4 * chance.random()))
        if at > now - dt.timedelta(seconds=10):
            return
        yield step, order, at, _apply(order, step, at)


def _apply(order: Order, step: str, at: dt.datetime) -> dict[str, Any]:
    """Change an order as its service would; return the event's details."""
    order.version += 1
    was_paid, order.status = order.paid_at is not None, STATUS[step]
    if step == "order.paid":
        order.paid_at = at
    elif step == "order.confirmed":
        order.stock_reserved_at = at
    elif step == "order.completed":
        order.completed_at = at
    elif step == "order.cancelled":
        return {"wasPaid": was_paid}
    elif step.endswith("refunded"):
        amount = 500 if step == "order.part_refunded" else order.total_amount
        order.refunded_amount = amount
        return {"amount": amount}
    return {}


def _order_row(order: Order, at: dt.datetime) -> Row:
    row = {str(field.column): getattr(order, field.attname) for field in Order._meta.concrete_fields}
    return row | {"items": json.dumps(order.items), "updated_at": at}


def _event(
    name: str,
    order: Order,
    at: dt.datetime,
    details: dict[str, Any],
    *,
    now: dt.datetime,
    chance: random.Random,
) -> Row:
    dead = chance.random() < 0.0004 and at < now - dt.timedelta(hours=1)
    return {
        "id": id_at(at, chance),
        "aggregate_type": "order",
        "aggregate_id": order.id,
        "event_type": EVENTS[name].topic,
        "version": 1,
        "sequence": order.version,
        "payload": json.dumps(event_payload(order=order, details=details)),
        "metadata": json.dumps(
            {"traceId": None, "correlationId": MARK, "idempotencyKey": None, "userId": None}
        ),
        "shard": shard_of(order.id),
        "retry_count": settings.EVENT_MAX_RETRIES if dead else 0,
        "last_error": "the broker refused it: message too large" if dead else "",
        "created_at": at,
        "published_at": None if dead else at + dt.timedelta(milliseconds=chance.uniform(8, 90)),
        "dead_lettered_at": at + dt.timedelta(minutes=9) if dead else None,
    }
