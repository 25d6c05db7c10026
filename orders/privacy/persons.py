"""Decide which orders and e-mails belong to a person. A person is an e-mail address; its case is ignored.

A person owns the orders that have the address now, and the e-mails that were sent to it, with their shop
copies. If an order now belongs to somebody else, the person owns only those e-mails. An order of another
system that has no address is its user's, unless orders of this user have several addresses. So are its
e-mails, which have none, either.
"""

from __future__ import annotations

from django.db.models import Q, QuerySet

from notifications.models import EmailNotification
from orders.models import Order, OrderQuerySet
from runtime.addresses import as_stored
from runtime.personal_data import ERASED_ADDRESS

#: The connection of the app role without a pooler. The role reads and writes the rows of every table.
DIRECT = "direct"


class NoPerson(ValueError):
    """The address is nobody's: empty, or `ERASED_ADDRESS`, which replaces that of every erased person."""


def check_address(email: str) -> str:
    """Return the address as it is stored. Raise `NoPerson`."""
    stored = as_stored(email)
    if not stored:
        raise NoPerson("An order without an address is found by another order of its user. Give its address.")
    if stored.lower() == ERASED_ADDRESS:
        raise NoPerson(f"{ERASED_ADDRESS} replaces the address of every erased person.")
    return stored


def orders_of_person(email: str) -> OrderQuerySet:
    return Order.objects.filter(Q(email__iexact=email) | _without_address(email))


def orders_without_address(email: str) -> OrderQuerySet:
    """Return the orders that only their user makes a person's. Erase them first: others lead to them."""
    return Order.objects.filter(_without_address(email))


def platform_emails(email: str) -> QuerySet[EmailNotification]:
    """Return the e-mails to a person, the shop copies of them, and those without an address."""
    copies = ~Q(customer_email="") & Q(customer_email__iexact=email)  # the index needs both
    theirs = Q(recipient_email__iexact=email) | copies
    owned = Order.objects.exclude(source="").filter(email__iexact=email).values_list("id", flat=True)
    if ids := [*owned, *orders_without_address(email).values_list("id", flat=True)]:
        theirs |= Q(order_id__in=ids, recipient_email="")
    return EmailNotification.objects.filter(theirs)


def _without_address(email: str) -> Q:
    """Return the condition of the orders without an address of the users who have only this address.

    It has the users' ids as values, because PostgreSQL then finds the orders by the index of users.
    """
    theirs = Order.objects.exclude(source="").filter(email__iexact=email).order_by()
    users = set(theirs.values_list("source", "user_id").distinct())
    if not users:
        return Q(pk__in=[])
    ids = {user_id for _, user_id in users}
    others = Order.objects.filter(user_id__in=ids).exclude(email__in=["", ERASED_ADDRESS])
    # A shop may give all guests the same user.
    users -= set(others.exclude(email__iexact=email).values_list("source", "user_id").distinct())
    condition = Q(pk__in=[])
    for source, user_id in sorted(users):
        condition |= Q(source=source, user_id=user_id, email="")
    return condition
