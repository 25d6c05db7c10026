"""The table of orders, and the SQL that reads and changes one order. orders.changes decides the changes."""

from __future__ import annotations

import datetime as dt
import functools
import json
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.conf import settings
from django.contrib.postgres.indexes import HashIndex
from django.db import models
from django.db.models import Exists, F, Q
from django.db.models.functions import Now, Upper

from runtime.database.ids import new_id
from runtime.database.row_change import RowToRead
from runtime.database.statement import ROW_VERSION, StatementPart, insert, parameter


class Seen(NamedTuple):
    """An order as it was read, with the database's time and the version of its row."""

    order: Order
    now: dt.datetime
    #: The id of the transaction that wrote the row (`xmin`). An update in any later transaction changes it.
    row: str


class StuckState(NamedTuple):
    """A state in which somebody waits for money or an answer. An order is stuck after STUCK_ORDER_HOURS."""

    since: str  # the column with the time at which it began
    condition: Q  # that of a partial index by `since`


#: By the name in metrics and in the admin's addresses. Orders of another system belong to none.
STUCK = {
    "unconfirmed": StuckState("paid_at", Q(source="", status="paid")),
    "unpaid": StuckState(
        "stock_reserved_at", Q(source="", status="pending", stock_reserved_at__isnull=False)
    ),
    # No column has the time of a cancellation. A later refund or correction of the order restarts the age.
    "unrefunded": StuckState(
        "updated_at",
        Q(source="", status="cancelled", paid_at__isnull=False, refunded_amount__lt=F("total_amount")),
    ),
}
#: The order of every list. Ids do not give it, because other systems choose the ids of their orders.
NEWEST_FIRST = ("-created_at", "-id")
#: Many shops never confirm orders. Theirs are not stuck.
CONFIRMS = dt.timedelta(days=7)


class OrderQuerySet(models.QuerySet["Order"]):
    """Queries of orders, and the SQL of a change.

    That SQL is written by hand because every change runs it, and the ORM needs twice the time.
    """

    def in_flight(self) -> OrderQuerySet:
        """Keep the unfinished orders, whose customers expect another e-mail."""
        unfinished = [Order.Status.PENDING, Order.Status.PAID, Order.Status.CONFIRMED]
        return self.filter(Q(status__in=unfinished) | Q(status=Order.Status.PART_REFUNDED, completed_at=None))

    def stuck(self, state: str) -> OrderQuerySet:
        """Keep the orders that are stuck in one of `STUCK`, by the database's clock."""
        since, condition = STUCK[state]
        age = dt.timedelta(hours=settings.STUCK_ORDER_HOURS)
        found = self.filter(condition, **{f"{since}__lt": Now() - age})
        if state != "unconfirmed":
            return found
        confirmed = Order.objects.filter(
            source="", status__in=["confirmed", "completed"], stock_reserved_at__gt=Now() - CONFIRMS
        )
        return found.filter(Exists(confirmed))

    def insert_part(self, order: Order) -> StatementPart:
        """Return the insert of a new order as a part of a statement."""
        return insert("orders", dict(zip(_NAMES, _values(order), strict=True)), returning=ROW_VERSION)

    def update_part(self, order: Order, *, row: str, columns: tuple[str, ...]) -> StatementPart:
        """Return the update of an order's `columns` as a part of a statement.

        It has no row if another change came first. `row` is that of the `Seen` on which the change was
        decided.
        """
        values = [parameter(getattr(order, name)) for name in columns]
        return StatementPart((_update(columns),), [*values, order.id, row])


class Order(models.Model):
    """An order with a snapshot of its recipient. Money is an integer in the currency's minor unit."""

    class Status(models.TextChoices):
        PENDING = "pending"
        PAID = "paid"
        CONFIRMED = "confirmed"
        COMPLETED = "completed"
        CANCELLED = "cancelled"
        PART_REFUNDED = "part_refunded"
        REFUNDED = "refunded"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    status = models.CharField(max_length=20, choices=Status, default=Status.PENDING)
    # Grows by one with every event. If another system owns the order, the highest sequence of its events.
    version = models.PositiveIntegerField(default=1)

    user_id = models.UUIDField()
    email = models.CharField(max_length=254)
    name = models.CharField(max_length=200, default="", blank=True)
    locale = models.CharField(max_length=20, default="en")
    reference = models.CharField(max_length=100, default="", blank=True)
    # The system that owns the order and alone changes it (orders.inbound.external), or "" for this system.
    source = models.CharField(max_length=100, default="", db_default="", blank=True, editable=False)

    items = models.JSONField(default=list, blank=True)  # of {sku, name, quantity, unit_amount}
    total_amount = models.BigIntegerField()
    refunded_amount = models.BigIntegerField(default=0)
    currency = models.CharField(max_length=3, default="USD")

    correlation_id = models.CharField(max_length=128, default="", blank=True)
    traceparent = models.CharField(max_length=55, default="", db_default="", editable=False)

    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)
    paid_at = models.DateTimeField(null=True, editable=False)
    stock_reserved_at = models.DateTimeField(null=True, editable=False)
    completed_at = models.DateTimeField(null=True, editable=False)

    objects = OrderQuerySet.as_manager()

    class Meta:
        db_table = "orders"
        permissions = [
            ("correct_address", "Can correct an order's address"),
            ("export_person", "Can export a person's data"),
            ("erase_person", "Can erase a person's data"),
        ]
        # Lists read the indexes by time backwards, because pages of an index into which values come in
        # ascending order are full, and otherwise half empty.
        indexes = [
            # GET /orders, also of a period; the admin's list; the chart of placed orders
            models.Index(fields=["created_at", "id"], name="orders_newest"),
            # GET /orders?user_id=
            models.Index(fields=["user_id", "created_at", "id"], name="orders_user_newest"),
            # GET /orders?status=, the admin's filter
            models.Index(fields=["status", "created_at", "id"], name="orders_status_newest"),
            # GET /orders?reference=, the admin's search
            models.Index(
                fields=["reference", "created_at", "id"],
                name="orders_reference_newest",
                condition=~Q(reference=""),
            ),
            # the lists of a token that is bound to a source, and those with a status
            models.Index(
                fields=["source", "created_at", "id"], name="orders_source_newest", condition=~Q(source="")
            ),
            models.Index(
                fields=["source", "status", "created_at", "id"],
                name="orders_source_status_newest",
                condition=~Q(source=""),
            ),
            # stuck orders; the second also finds the last confirmed one
            models.Index(
                fields=["paid_at"], name="orders_unconfirmed", condition=STUCK["unconfirmed"].condition
            ),
            models.Index(
                fields=["status", "stock_reserved_at"],
                name="orders_reserved",
                condition=Q(source="", stock_reserved_at__isnull=False),
            ),
            models.Index(
                fields=["updated_at"], name="orders_unrefunded", condition=STUCK["unrefunded"].condition
            ),
            # the admin's search box
            HashIndex(fields=["correlation_id"], name="orders_correlation"),
            # GET /orders?email=, the admin's search by address, a person's data: all ask `email__iexact`
            models.Index(Upper("email"), "created_at", "id", name="orders_email_newest"),
        ]
        # Every statement that writes an order parses all of them, so each says what no other says.
        constraints = [
            models.CheckConstraint(
                condition=Q(total_amount__gte=1, total_amount__lte=10**12), name="orders_total_in_range"
            ),
            # also that the status is one of these, and that no more is refunded than the total
            models.CheckConstraint(
                condition=Q(status="refunded", refunded_amount=F("total_amount"))
                | (
                    Q(status="part_refunded", refunded_amount__gt=0)
                    & Q(refunded_amount__lt=F("total_amount"))
                )
                | Q(status="cancelled", refunded_amount__gte=0, refunded_amount__lte=F("total_amount"))
                | Q(status__in=["pending", "paid", "confirmed", "completed"], refunded_amount=0),
                name="orders_refund_fits_status",
            ),
            models.CheckConstraint(condition=Q(currency__regex=r"^[A-Z]{3}$"), name="orders_currency_form"),
        ]

    def __str__(self) -> str:
        return self.reference or str(self.id)

    @property
    def refundable_amount(self) -> int:
        """The minor units that can still be refunded."""
        return self.total_amount - self.refunded_amount


_NAMES = [field.attname for field in Order._meta.concrete_fields]
_ITEMS = _NAMES.index("items")
_values = operator.attrgetter(*_NAMES)


def _seen(now: dt.datetime, columns: Sequence[Any]) -> Seen:
    """Make a `Seen` from the values of `ORDER_ROW`'s columns, read at `now`."""
    values = list(columns)
    values[_ITEMS] = json.loads(values[_ITEMS])
    return Seen(Order.from_db("default", _NAMES, values[:-1]), now, values[-1])


#: An order as it is read for a change.
ORDER_ROW = RowToRead(
    "orders", columns=", ".join([*(f"orders.{name}" for name in _NAMES), "orders.xmin::text"]), make=_seen
)


@functools.cache
def _update(columns: tuple[str, ...]) -> str:
    # Only names of this model's columns, so nothing can be injected.
    return (
        f"UPDATE orders SET {', '.join(f'{name} = %s' for name in columns)} {{source}}"  # noqa: S608
        f" WHERE orders.id = %s AND orders.xmin = %s::xid RETURNING orders.{ROW_VERSION}"
    )
