"""The order: who bought, what it costs, which status it has. Only orders.services changes one."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence

from django.db import connections, models
from django.db.models import F, Q
from django.db.models.functions import Now, Upper

from outbox.core.ids import new_id


class OrderQuerySet(models.QuerySet["Order"]):
    """The orders of a state, and the two statements of a change.

    Those are written by hand: the ORM takes twice the time, on every change.
    """

    def in_flight(self) -> OrderQuerySet:
        """Keep the orders that will send another e-mail if nothing goes wrong."""
        unfinished = [Order.Status.PENDING, Order.Status.PAID, Order.Status.CONFIRMED]
        return self.filter(Q(status__in=unfinished) | Q(status=Order.Status.PART_REFUNDED, completed_at=None))

    def lock(self, *, order_id: uuid.UUID) -> tuple[Order, dt.datetime]:
        """Lock an order's row until the transaction ends. Return the order and the database's time.

        Raise `Order.DoesNotExist`.
        """
        rows = self.raw(
            "SELECT *, statement_timestamp() AS database_now FROM orders WHERE id = %s FOR UPDATE", [order_id]
        )
        for order in rows:
            return order, order.database_now  # type: ignore[attr-defined]  # a column of this statement
        raise self.model.DoesNotExist

    def save_change(self, order: Order, *, fields: Sequence[str], now: dt.datetime, versions: int) -> None:
        """Write a locked order's status and `fields`, with `versions` more versions, changed at `now`."""
        order.version += versions
        order.updated_at = now
        columns = ("status", "version", "updated_at", *fields)
        assignments = ", ".join(f"{column} = %s" for column in columns)
        with connections[self.db].cursor() as cursor:
            cursor.execute(
                f"UPDATE orders SET {assignments} WHERE id = %s",  # noqa: S608 - names of this model
                [*(getattr(order, column) for column in columns), order.id],
            )


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
    version = models.PositiveIntegerField(default=1)  # grows by one with every change, under the row's lock

    user_id = models.UUIDField()
    email = models.CharField(max_length=254)
    name = models.CharField(max_length=200, default="", blank=True)
    locale = models.CharField(max_length=20, default="en")
    reference = models.CharField(max_length=100, default="", blank=True)

    items = models.JSONField(default=list, blank=True)  # of {sku, name, quantity, unit_amount}
    total_amount = models.BigIntegerField()
    refunded_amount = models.BigIntegerField(default=0)
    currency = models.CharField(max_length=3, default="USD")

    correlation_id = models.CharField(max_length=128, default="", blank=True)

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
        indexes = [
            # GET /orders?user_id=, newest first
            models.Index(fields=["user_id", "-id"], name="orders_user"),
            # GET /orders?status=, the admin's filter
            models.Index(fields=["status", "-id"], name="orders_status"),
            # GET /orders?reference=, the admin's search
            models.Index(fields=["reference", "-id"], name="orders_reference", condition=~Q(reference="")),
            # the admin's search by address and a person's data: both ask `email__iexact`
            models.Index(Upper("email"), F("id").desc(), name="orders_email_any_case"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(
                    status__in=[
                        "pending",
                        "paid",
                        "confirmed",
                        "completed",
                        "cancelled",
                        "part_refunded",
                        "refunded",
                    ]
                ),
                name="orders_status_known",
            ),
            models.CheckConstraint(
                condition=Q(total_amount__gte=1, total_amount__lte=10**12), name="orders_total_in_range"
            ),
            models.CheckConstraint(
                condition=Q(refunded_amount__gte=0, refunded_amount__lte=F("total_amount")),
                name="orders_refund_within_total",
            ),
            models.CheckConstraint(
                condition=Q(status="refunded", refunded_amount=F("total_amount"))
                | (
                    Q(status="part_refunded", refunded_amount__gt=0)
                    & Q(refunded_amount__lt=F("total_amount"))
                )
                | Q(status="cancelled")
                | Q(status__in=["pending", "paid", "confirmed", "completed"], refunded_amount=0),
                name="orders_refund_fits_status",
            ),
            models.CheckConstraint(condition=Q(currency__regex=r"^[A-Z]{3}$"), name="orders_currency_form"),
        ]

    def __str__(self) -> str:
        return self.reference or str(self.id)

    @property
    def refundable_amount(self) -> int:
        """Minor units that can still be refunded."""
        return self.total_amount - self.refunded_amount
