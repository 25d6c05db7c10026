"""The two shops of `manage.py demo`: what they sold in a month, what they sell now, and a trial.

All is made by the services that requests use. Orders of now send their e-mails to the mailbox. Those of the
past are written as the table would have them by now, as far back as the partitions of e-mails reach; of their
events, only those of the attached days are written.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import json
import random
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.conf import settings
from django.db import transaction

from events.models import DomainEvent
from notifications.content.rendering import write_date
from notifications.models import EmailNotification, MailProfile
from notifications.states.transitions import EndedBy, Status
from orders import parcels, services, shipments
from orders.models import Order
from orders.services import OrderChange
from runtime.charts import sums
from runtime.charts.sums import HOUR, KEEP_MINUTES, Window
from runtime.database.clock import read_database_time
from runtime.database.ids import id_floor, new_id
from runtime.database.partitions import attached
from runtime.models import TrafficSum
from runtime.process import cached_rows
from shop_connections.models import ShopConnection
from shop_connections.process import process_waiting
from shop_connections.receive import store_post
from shop_connections.services import make_secret

#: The beginning of the correlation id of all orders of a demo.
MARK = "demo-"
#: The second shop, whose connection is in trial.
SHOP, SHOP_URL = "beans", "https://beans.example.com"
#: The brands, by the source of their orders.
BRANDS: dict[str, dict[str, str]] = {
    "": {
        "from_email": "Leaf & Cup <orders@leaf.example.com>",
        "shop_name": "Leaf & Cup",
        "postal_address": "Leaf & Cup, 5 High Street, Leeds",
        "url": "https://leaf.example.com",
        "colour": "#166534",
    },
    SHOP: {
        "from_email": "Beans & Co <orders@beans.example.com>",
        "shop_name": "Beans & Co",
        "postal_address": "Beans & Co, Hafenstraße 9, 20457 Hamburg",
        "url": SHOP_URL,
        "default_locale": "de",
        "colour": "#7c2d12",
    },
}
#: The mailbox of `make run` answers 400 and 503 for recipients with these names.
REFUSED, DOWN = "refused", "down"
NAMES = ("Ada Byron", "Bo Larsen", "Chloé Petit", "Diego Ruiz", "Emma Vogel", "Farid Amin", "Grace Okoro")
LOCALES = (("en", "USD"), ("de", "EUR"), ("fr", "EUR"), ("es", "EUR"), ("en-GB", "GBP"))
PRODUCTS = (
    ("Darjeeling, 250 g", 1490),
    ("Teapot of cast iron", 6900),
    ("Matcha whisk", 1890),
    ("Tea towel", 990),
)
#: Courses of orders of now: the changes after it was placed.
COURSES: tuple[tuple[str, ...], ...] = (
    ("order.paid", "parcel"),
    ("order.paid", "order.confirmed", "parcel"),
    ("order.paid", "order.completed"),
    ("order.paid", "first parcel"),
    ("order.cancelled",),
    ("order.paid", "parcel", "order.part_refunded"),
    ("order.paid", "order.cancelled", "order.refunded"),
    (),
)
REFUND = 500
#: The event of the first e-mail of most orders.
FIRST_EMAIL = "order.paid"


def _ship(*, order_id: uuid.UUID, lines: Sequence[parcels.Line] | None = None) -> OrderChange:
    number = f"00340434{new_id().int % 10**12:012}"
    change, _ = shipments.ship(
        order_id=order_id,
        lines=lines,
        carrier="DHL",
        tracking_number=number,
        tracking_url=f"https://parcels.example.com/{number}",
    )
    return change


def _end_parcel(*, order_id: uuid.UUID, column: str) -> OrderChange:
    """Deliver the order's first parcel that is on its way, or take its newest one back."""
    end = {"delivered_at": shipments.deliver, "returned_at": shipments.take_return}[column]
    sent = parcels.read_shipments(Order(id=order_id))
    on_way = [parcel for parcel in sent if parcel.delivered_at is None]
    parcel = on_way[0] if column == "delivered_at" else sent[-1]
    return end(order_id=order_id, shipment_id=parcel.id)[0]


def _refund_item(*, order_id: uuid.UUID) -> OrderChange:
    """Refund the order's last item, which came back."""
    amount = Order.objects.get(id=order_id).items[-1]["unit_amount"]
    return services.refund(order_id=order_id, amount=amount)


CHANGES: dict[str, Callable[..., OrderChange]] = {
    "order.paid": services.pay,
    "order.confirmed": services.confirm,
    "order.completed": partial(services.complete, tracking_url="https://parcels.example.com/t/1"),
    "order.cancelled": partial(services.cancel, reason="Out of stock"),
    "order.part_refunded": partial(services.refund, amount=REFUND),
    "order.refunded": services.refund,
    "first parcel": partial(_ship, lines=[{"item": 0, "quantity": 1}]),
    "parcel": _ship,
    "delivered": partial(_end_parcel, column="delivered_at"),
    "returned": partial(_end_parcel, column="returned_at"),
    "refunded item": _refund_item,
}
#: Courses of orders of the past: a weight, the number of items, and the changes with the hours before each.
PAST_COURSES: tuple[tuple[int, int, tuple[tuple[str, float], ...]], ...] = (
    (40, 1, (("order.paid", 0.05), ("parcel", 14), ("delivered", 30))),
    (20, 2, (("order.paid", 0.05), ("order.confirmed", 1), ("parcel", 9), ("delivered", 40))),
    (
        12,
        2,
        (("order.paid", 0.05), ("first parcel", 8), ("parcel", 20), ("delivered", 30), ("delivered", 18)),
    ),
    (
        6,
        2,
        (("order.paid", 0.05), ("first parcel", 8), ("parcel", 20), ("returned", 60), ("refunded item", 5)),
    ),
    (5, 1, (("order.paid", 0.05), ("parcel", 14), ("delivered", 30), ("order.part_refunded", 50))),
    (8, 1, (("order.paid", 0.05), ("order.completed", 20))),
    (5, 1, (("order.cancelled", 3),)),
    (4, 1, (("order.paid", 0.05), ("order.cancelled", 5), ("order.refunded", 1))),
)
#: How far back the past reaches, when its outage began, and how long that lasted.
MONTH, OUTAGE_AGO, OUTAGE = dt.timedelta(days=30), dt.timedelta(hours=6), dt.timedelta(minutes=50)
#: A third of the past orders are of this time, so that its charts show a busy shop.
LAST_DAY = dt.timedelta(days=1)
#: The share of the past e-mails that bounced.
BOUNCED = 0.03
#: Answers of the provider that made e-mails of the past dead letters.
CAUSES = (
    ("550", "550: 5.1.1 The email account that you tried to reach does not exist: {address}"),
    ("550", "550: 5.7.1 Message rejected by policy, id {id}"),
    ("554", "554: 5.7.1 Our address is blocked by a block list, id {id}"),
)


class OtherOrders(Exception):
    """The database has orders that no demo made."""


def check_only_demo() -> None:
    """Raise `OtherOrders` if a shop's orders would mix with those of the demo."""
    others = Order.objects.exclude(correlation_id__startswith=MARK).exclude(source=SHOP)
    other = others.first()
    if other is not None:
        raise OtherOrders(
            f"This database has orders that the demo did not make, such as {other.reference or other.id}."
            " Fill an empty database: stop `make run`, run `make clean`, and start again."
        )


def save_brands() -> None:
    """Give both shops their brands, unless they have a profile."""
    for source, values in BRANDS.items():
        MailProfile.objects.get_or_create(source=source, defaults=values)
    cached_rows.refresh()


def place_and_move(number: int) -> None:
    """Place and change one order. The mailbox refuses every 25th recipient and answers 503 for every 40th."""
    chance = random.Random(number)  # noqa: S311 - sample data, not a secret
    kind = REFUSED if number % 25 == 0 else DOWN if number % 40 == 1 else ""
    purchase = sample_purchase(chance)
    order = _place(
        user_id=uuid.uuid4(),
        email=_address(purchase["name"], number, kind=kind),
        reference=f"D-{number:05}",
        **purchase,
    )
    for change in COURSES[number % len(COURSES)]:
        with transaction.atomic():
            CHANGES[change](order_id=order.id).save()


def _address(name: str, number: int, *, kind: str = "") -> str:
    first = name.split()[0].lower().replace("é", "e")
    return f"{kind or first}-{number}@example.com"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The time of the past orders: its beginning, that of its events, its outage, and now."""

    since: dt.datetime
    events_since: dt.datetime
    now: dt.datetime

    @classmethod
    def read(cls) -> Past:
        """Return the past that the attached partitions can take."""
        now = read_database_time()
        minute = dt.timedelta(minutes=1)
        return cls(
            since=max(now - MONTH, attached(model=EmailNotification)[0].since + minute),
            events_since=attached(model=DomainEvent)[0].since + minute,
            now=now,
        )

    @property
    def outage(self) -> tuple[dt.datetime, dt.datetime]:
        began = self.now - OUTAGE_AGO
        return began, began + OUTAGE


def place_past(number: int, *, of: int, past: Past) -> None:
    """Write order `number` of so many, with its changes up to now, in the caller's transaction."""
    chance = random.Random(f"past {number}")  # noqa: S311 - sample data, not a secret
    until_last_day = past.now - LAST_DAY - past.since
    share = (number + chance.random()) / of * 3 / 2  # the last third are those of the last day
    at = past.since + until_last_day * min(share, 1) + LAST_DAY * 2 * max(share - 1, 0)
    if number % 12 == 5:  # a busy hour, in which the provider was down
        at = past.outage[0] + OUTAGE * chance.random() * 0.9
    weights = [weight for weight, *_ in PAST_COURSES]
    ((_, items, course),) = chance.choices(PAST_COURSES, weights)
    purchase = sample_purchase(chance, items=items)
    cause = CAUSES[number // 10 % len(CAUSES)] if number % 10 == 3 and number > of // 3 else None
    change = services.place(
        id=_past_id(at),
        now=at,
        user_id=uuid.uuid4(),
        email=_address(purchase["name"], number),
        reference=f"P-{number:05}",
        **purchase,
    )
    _save_past(change, at=at, past=past, cause=cause, chance=chance)
    for name, hours in course:
        at += dt.timedelta(hours=hours * chance.uniform(0.5, 1.5))
        if at > past.now - dt.timedelta(minutes=1):
            return
        moved = CHANGES[name](order_id=change.order.id)
        _save_past(moved, at=at, past=past, cause=cause, chance=chance)


def _past_id(at: dt.datetime) -> uuid.UUID:
    """Return a UUIDv7 of a past time."""
    return uuid.UUID(int=id_floor(at).int | new_id().int & (1 << 80) - 1)


def _save_past(
    change: OrderChange,
    *,
    at: dt.datetime,
    past: Past,
    cause: tuple[str, str] | None,
    chance: random.Random,
) -> None:
    """Save a change as if it had been made at a past time, and its e-mails as if they had ended."""
    now = change.now
    if at < past.events_since:
        change.rows = [row for row in change.rows if not isinstance(row, DomainEvent)]
    for row in change.rows:
        for field in row._meta.concrete_fields:
            if row.__dict__.get(field.attname) == now:
                setattr(row, field.attname, at)
        if isinstance(row, DomainEvent):
            row.id, row.created_at = _past_id(at), at
            row.published_at = at + dt.timedelta(milliseconds=chance.uniform(8, 90))
            row.payload = json.loads(json.dumps(row.payload).replace(now.isoformat(), at.isoformat()))
        elif isinstance(row, EmailNotification):
            row.id, row.created_at, row.updated_at, row.next_attempt_at = _past_id(at), at, at, at
            today, then = (write_date(day, locale=row.locale) for day in (now, at))
            row.body = row.body.replace(today, then)
            row.body_text = row.body_text.replace(today, then)
            _end_email(row, at=at, past=past, cause=cause, chance=chance)
    change.save()


def _end_email(
    mail: EmailNotification,
    *,
    at: dt.datetime,
    past: Past,
    cause: tuple[str, str] | None,
    chance: random.Random,
) -> None:
    """Make an e-mail a dead letter of the `cause`, or send it, after the outage if it was in it."""

    def failure(outcome: str, code: str, text: str) -> dict[str, str]:
        shown = {"at": at.isoformat(), "provider": mail.provider, "outcome": outcome}
        return {**shown, "code": code, "text": text}

    mail.provider = settings.EMAIL_PROVIDERS[0]
    if cause is not None:
        code, text = cause
        text = text.format(address=mail.recipient_email, id=mail.id.hex[-12:])
        mail.status, mail.ended_by, mail.last_error, mail.errors = (
            Status.DEAD_LETTERED,
            EndedBy.PROVIDER,
            text,
            [failure("permanent", code, text)],
        )
        return
    began, ended = past.outage
    sent = at + dt.timedelta(seconds=chance.uniform(0.05, 0.4))
    if began <= at < ended:
        mail.errors = [failure("transient", "503", "503: Service Unavailable")]
        sent = ended + dt.timedelta(seconds=chance.uniform(5, 60))
    mail.status, mail.sent_at, mail.updated_at = Status.SENT, sent, sent
    mail.provider_message_id = f"{MARK}{mail.id.hex[-12:]}"
    ended_as = "bounced_at" if chance.random() < BOUNCED else "delivered_at"
    setattr(mail, ended_as, sent + dt.timedelta(seconds=chance.uniform(1, 6)))


def sum_past(past: Past) -> None:
    """Write the sums of the past for the charts, with an open circuit breaker during the outage."""
    until = past.now.replace(second=0, microsecond=0)
    spans = (
        (
            TrafficSum.HOUR,
            past.since.replace(minute=0, second=0, microsecond=0),
            until.replace(minute=0) + HOUR,
        ),
        (TrafficSum.MINUTE, max(past.since, until - KEEP_MINUTES).replace(second=0, microsecond=0), until),
    )
    breaker, (began, ended) = f"open:{settings.EMAIL_PROVIDERS[0]}", past.outage
    for span, since, end in spans:
        steps = sums.read_window(Window(since=since, until=end, span=span))
        for start, summed in steps.items():
            overlap = min(ended, start + dt.timedelta(seconds=span)) - max(began, start)
            minutes = max(0, round(overlap / dt.timedelta(minutes=1)))
            steps[start] = dataclasses.replace(summed, samples={breaker: minutes})
        sums.store(span, steps)


def connect_shop() -> ShopConnection | None:
    """Connect the second shop and take some posts of its orders. Return None without a CONNECTION_KEY.

    Its orders are of now, and the connection stays in its trial: their e-mails are written, and none leaves.
    """
    if not settings.CONNECTION_KEY:
        return None
    shop = ShopConnection.objects.filter(source=SHOP).first()
    if shop is not None:
        return shop
    shop = ShopConnection(source=SHOP, address=SHOP_URL)
    make_secret(shop)
    shop.save()
    now = read_database_time().replace(microsecond=0)
    for number in range(3):
        placed = now - dt.timedelta(minutes=50 - 10 * number)
        for minutes in (0, 25)[: 2 if number < 2 else 1]:
            body = json.dumps(
                _post_of(2001 + number, placed, modified=placed + dt.timedelta(minutes=minutes))
            )
            store_post(shop, body.encode())
    process_waiting(seconds=10)
    shop.refresh_from_db()
    return shop


def _post_of(number: int, placed: dt.datetime, *, modified: dt.datetime) -> dict[str, Any]:
    """Return an order as WooCommerce posts it: paid at once, and completed if it was `modified` later."""

    def when(time: dt.datetime) -> str:
        return time.astimezone(dt.UTC).replace(tzinfo=None).isoformat()

    product, amount = (
        ("Espresso blend, 500 g", "13.90"),
        ("Moka pot", "29.00"),
        ("Filter, 100 pieces", "6.50"),
    )[number % 3]
    is_completed = modified > placed
    first, last = NAMES[number % len(NAMES)].split()
    return {
        "id": number,
        "number": str(number),
        "status": "completed" if is_completed else "processing",
        "currency": "EUR",
        "date_created_gmt": when(placed),
        "date_modified_gmt": when(modified),
        "date_paid_gmt": when(placed),
        "date_completed_gmt": when(modified) if is_completed else None,
        "total": amount,
        "prices_include_tax": True,
        "customer_id": 0,
        "billing": {"first_name": first, "last_name": last, "email": _address(first, number)},
        "payment_method": "stripe",
        "meta_data": [],
        "line_items": [
            {
                "id": number * 10,
                "name": product,
                "product_id": 93,
                "quantity": 1,
                "total": amount,
                "total_tax": "0.00",
                "sku": product.split()[0].upper(),
            }
        ],
        "refunds": [],
    }


def place_one() -> Order:
    """Place the order of the README's first curls: 42.00 USD, not yet paid. Count from A-1001."""
    taken = set(Order.objects.filter(reference__startswith="A-").values_list("reference", flat=True))
    free = (reference for number in itertools.count(1001) if (reference := f"A-{number}") not in taken)
    return _place(
        user_id=uuid.uuid4(),
        email="ann@example.com",
        name="Ann",
        reference=next(free),
        total_amount=4200,
        items=[{"sku": "pen", "name": "Brass pen", "quantity": 1, "unit_amount": 4200}],
    )


def _place(**values: Any) -> Order:
    with transaction.atomic():
        change = services.place(now=read_database_time(), **values)
        change.save()
    return change.order


def sample_purchase(chance: random.Random, *, items: int | None = None) -> dict[str, Any]:
    """Return who buys what, of so many different items."""
    locale, currency = chance.choice(LOCALES)
    bought = chance.sample(PRODUCTS, k=items or chance.randint(1, 2))
    lines = [
        {"sku": product.split()[0].lower(), "name": product, "quantity": 1, "unit_amount": price}
        for product, price in bought
    ]
    total = sum(price for _, price in bought) + 590
    name = chance.choice(NAMES)
    return {"name": name, "locale": locale, "currency": currency, "items": lines, "total_amount": total}
