"""The orders of `manage.py demo`, which are placed and changed as by requests."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from django.db import transaction

from orders import services
from orders.models import Order
from orders.services import OrderChange
from runtime.database.clock import read_database_time

#: The mailbox of `make run` answers 400 and 503 for recipients with these names.
REFUSED, DOWN = "refused", "down"
NAMES = ("Ada Byron", "Bo Larsen", "Chloé Petit", "Diego Ruiz", "Emma Vogel", "Farid Amin", "Grace Okoro")
LOCALES = (("en", "USD"), ("de", "EUR"), ("fr", "EUR"), ("es", "EUR"), ("en-GB", "GBP"))
PRODUCTS = (("Field notebook", 1290), ("Brass pen", 4500), ("Desk lamp", 8900), ("Wool blanket", 12900))
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
REFUND = 500
CHANGES: dict[str, Callable[..., OrderChange]] = {
    "order.paid": services.pay,
    "order.confirmed": services.confirm,
    "order.completed": partial(services.complete, tracking_url="https://parcels.example.com/t/1"),
    "order.cancelled": partial(services.cancel, reason="Out of stock"),
    "order.part_refunded": partial(services.refund, amount=REFUND),
    "order.refunded": services.refund,
}


def place_and_move(number: int) -> None:
    """Place and change one order. The mailbox refuses every 25th recipient and answers 503 for every 40th."""
    kind = REFUSED if number % 25 == 0 else DOWN if number % 40 == 1 else "customer"
    order = _place(
        user_id=uuid.uuid4(),
        email=f"{kind}-{number}@example.com",
        reference=f"D-{number:05}",
        **sample_purchase(random.Random(number)),  # noqa: S311 - sample data, not a secret
    )
    for change in COURSES[number % len(COURSES)]:
        with transaction.atomic():
            CHANGES[change](order_id=order.id).save()


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


def sample_purchase(chance: random.Random) -> dict[str, Any]:
    locale, currency = chance.choice(LOCALES)
    bought = chance.sample(PRODUCTS, k=chance.randint(1, 2))
    items = [
        {"sku": product.split()[0].lower(), "name": product, "quantity": 1, "unit_amount": price}
        for product, price in bought
    ]
    total = sum(price for _, price in bought) + 590
    name = chance.choice(NAMES)
    return {"name": name, "locale": locale, "currency": currency, "items": items, "total_amount": total}
