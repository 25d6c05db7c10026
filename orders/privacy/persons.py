"""Decide which orders and e-mails belong to a person. A person is an e-mail address; its case is ignored.

A person owns the orders that have the address now, and the e-mails that were sent to it. If an order now
belongs to somebody else, the person owns only those e-mails. Called by orders.privacy.erasure,
orders.privacy.person_export and the admin.
"""

from __future__ import annotations

import dataclasses

from django.db.models import QuerySet

from notifications.models import EmailNotification
from orders.models import Order
from outbox.addresses import as_stored
from outbox.privacy import ERASED_ADDRESS

#: The connection of the app role without a pooler. The role reads and writes the rows of every table.
DIRECT = "direct"
#: Counts of a person's rows stop here.
MANY = 10_000


class NoPerson(ValueError):
    """The address is `ERASED_ADDRESS`, which replaces the address of every erased person."""


@dataclasses.dataclass(frozen=True, slots=True)
class Count:
    """How many live rows an erasure would change or leave. Each number is at most `MANY`."""

    orders: int
    mails: int
    #: E-mails to the person about orders that now belong to somebody else.
    mails_of_other_orders: int
    #: E-mails to other addresses about the person's orders. They belong to those addresses and stay.
    mails_to_others: int


def check_address(email: str) -> str:
    """Return the address as it is stored. Raise `NoPerson` for `ERASED_ADDRESS`."""
    stored = as_stored(email)
    if stored.lower() == ERASED_ADDRESS:
        raise NoPerson(f"{ERASED_ADDRESS} replaces the address of every erased person.")
    return stored


def own_orders(email: str) -> QuerySet[Order]:
    return Order.objects.filter(email__iexact=email)


def own_mails(email: str) -> QuerySet[EmailNotification]:
    return EmailNotification.objects.filter(recipient_email__iexact=email)


def count_person(*, email: str) -> Count:
    orders = set(own_orders(email).values_list("id", flat=True)[:MANY])
    mails = list(own_mails(email).values_list("order_id", flat=True)[:MANY])
    others = EmailNotification.objects.filter(order_id__in=orders).exclude(recipient_email__iexact=email)
    return Count(
        orders=len(orders),
        mails=len(mails),
        mails_of_other_orders=sum(order not in orders for order in mails),
        mails_to_others=len(others.exclude(recipient_email=ERASED_ADDRESS).values_list("id")[:MANY]),
    )
