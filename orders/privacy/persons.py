"""Which orders and e-mails are a person's. A person is an e-mail address, in any case.

They own the orders that have the address now, and the e-mails that were addressed to it. Of an order that
belongs to somebody else now, only those e-mails are theirs. Called by orders.privacy.erasure,
orders.privacy.person_export and the admin.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Collection

from django.db.models import QuerySet

from notifications.models import EmailNotification
from orders.models import Order
from outbox.database.ids import EPOCH, id_time
from outbox.privacy import ERASED_ADDRESS

#: The app role without a pooler: it reads and writes the rows of every table.
DIRECT = "direct"
#: A count of a person's rows goes no further.
MANY = 10_000
#: How far another system's clock may be ahead of the database's.
CLOCKS_APART = dt.timedelta(days=1)


class NoPerson(ValueError):
    """The address is the one that stands for every erased person."""


@dataclasses.dataclass(frozen=True, slots=True)
class Count:
    """How many live rows an erasure of a person would change, and how many it would leave: `MANY` at most."""

    orders: int
    mails: int
    #: E-mails to the person, of orders that belong to somebody else now.
    mails_of_other_orders: int
    #: E-mails of the person's orders to other addresses. They belong to those addresses and stay.
    mails_to_others: int


def check_address(email: str) -> str:
    """Return the address without spaces around it. Raise `NoPerson`."""
    if email.strip().lower() == ERASED_ADDRESS:
        raise NoPerson(f"{ERASED_ADDRESS} stands for every erased person.")
    return email.strip()


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


def first_row(order_ids: Collection[uuid.UUID]) -> dt.datetime:
    """Return a time before every e-mail and event of these orders: one at least.

    The id of another system's order tells no time, and its `created_at` is what that system said.
    """
    rows = Order.objects.filter(id__in=order_ids).values_list("id", "source", "created_at")
    known = {id: (source, created_at) for id, source, created_at in rows}

    def before(id: uuid.UUID) -> dt.datetime:
        source, created_at = known.get(id, ("unknown", EPOCH))
        return max(created_at, EPOCH + CLOCKS_APART) - CLOCKS_APART if source else id_time(id)

    return min(map(before, order_ids))
