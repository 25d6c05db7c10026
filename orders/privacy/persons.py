"""Decide which orders and e-mails belong to a person. A person is an e-mail address; its case is ignored.

A person owns the orders that have the address now, and the e-mails that were sent to it, with their shop
copies. If an order now belongs to somebody else, the person owns only those e-mails.
"""

from __future__ import annotations

from django.db.models import Q, QuerySet

from notifications.models import EmailNotification
from orders.models import Order
from runtime.addresses import as_stored
from runtime.personal_data import ERASED_ADDRESS

#: The connection of the app role without a pooler. The role reads and writes the rows of every table.
DIRECT = "direct"


class NoPerson(ValueError):
    """The address is `ERASED_ADDRESS`, which replaces the address of every erased person."""


def check_address(email: str) -> str:
    """Return the address as it is stored. Raise `NoPerson` for `ERASED_ADDRESS`."""
    stored = as_stored(email)
    if stored.lower() == ERASED_ADDRESS:
        raise NoPerson(f"{ERASED_ADDRESS} replaces the address of every erased person.")
    return stored


def own_orders(email: str) -> QuerySet[Order]:
    return Order.objects.filter(email__iexact=email)


def own_emails(email: str) -> QuerySet[EmailNotification]:
    """Return the e-mails to a person, and the shop copies of them."""
    copies = ~Q(customer_email="") & Q(customer_email__iexact=email)  # the index needs both
    return EmailNotification.objects.filter(Q(recipient_email__iexact=email) | copies)
