"""The table of orders. orders.services changes them."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

from django.conf import settings
from django.contrib.postgres.indexes import HashIndex
from django.db import connections, models
from django.db.models import Exists, F, Q
from django.db.models.functions import Now

from runtime.addresses import domain_of
from runtime.binding import Binding, by_source
from runtime.database import replica
from runtime.database.beginnings import LIMIT, any_case, beginning_with
from runtime.database.ids import new_id
from runtime.database.parts import (
    READ,
    Hits,
    beginnings_of_words,
    containing,
    find_parts,
    is_part,
    join,
    parts_index,
)


class StuckState(NamedTuple):
    """A state in which somebody waits for money or an answer. An order is stuck after STUCK_ORDER_HOURS."""

    since: str  # the column with the time at which it began
    condition: Q  # that of a partial index by `since`
    times: int = 1  # an order is stuck after so many times STUCK_ORDER_HOURS


UNSHIPPED = Q(source="", status__in=["paid", "confirmed"], fulfilment="none")
#: By the name in metrics and in the admin's addresses. Orders of another system belong to none.
STUCK = {
    "unconfirmed": StuckState("paid_at", Q(source="", status="paid", fulfilment="none")),
    "unshipped": StuckState("paid_at", UNSHIPPED, times=7),
    "unpaid": StuckState(
        "stock_reserved_at", Q(source="", status="pending", stock_reserved_at__isnull=False)
    ),
    # No column has the time of a cancellation. A later refund or correction of the order restarts the age.
    "unrefunded": StuckState(
        "updated_at",
        Q(source="", status="cancelled", paid_at__isnull=False, refunded_amount__lt=F("total_amount")),
    ),
    "unexpected_payment": StuckState(
        "unexpected_payment_at", Q(source="", unexpected_payment_at__isnull=False)
    ),
}
#: The order of every list. Ids do not give it: other systems choose the ids of their orders.
NEWEST_FIRST = ("-created_at", "-id")
NEWEST_FIRST_SQL = "created_at DESC, id DESC"
#: Many shops never confirm orders, or tell of no parcels here. Theirs are not stuck.
CONFIRMS = dt.timedelta(days=7)
SHIPS = dt.timedelta(days=60)


class OrderQuerySet(models.QuerySet["Order"]):
    def in_flight(self) -> OrderQuerySet:
        """Keep the unfinished orders, whose customers expect another e-mail."""
        unfinished = [Order.Status.PENDING, Order.Status.PAID, Order.Status.CONFIRMED]
        return self.filter(Q(status__in=unfinished) | Q(status=Order.Status.PART_REFUNDED, completed_at=None))

    def stuck(self, state: str) -> OrderQuerySet:
        """Keep the orders that are stuck in one of `STUCK`, by the database's clock."""
        since, condition, times = STUCK[state]
        age = dt.timedelta(hours=settings.STUCK_ORDER_HOURS * times)
        overdue = self.filter(condition, **{f"{since}__lt": Now() - age})
        if state == "unconfirmed":
            confirmed = Order.objects.filter(
                source="", status__in=["confirmed", "completed"], stock_reserved_at__gt=Now() - CONFIRMS
            )
            return overdue.filter(Exists(confirmed))
        if state == "unshipped":
            shipped = Shipment.objects.filter(sequence=None, shipped_at__gt=Now() - SHIPS)
            return overdue.filter(Exists(shipped))
        return overdue

    def search(self, text: str, *, shops: Binding) -> Hits:
        """Return the shops' orders that a text finds by its reference, customer or parcel.

        Of more than `LIMIT`, return the newest.
        """
        hits = join(*self._searches(text, shops))
        if len(hits.ids) <= LIMIT:
            return hits
        rows = self.filter(id__in=hits.ids).order_by(*NEWEST_FIRST).values_list("id", flat=True)
        return Hits.of(list(rows[: LIMIT + 1]), is_cut=hits.is_cut)

    def _searches(self, text: str, shops: Binding) -> Iterator[Hits]:
        """Yield what each way to search finds. A whole reference ends the search of parts."""
        name = text.lstrip("#")
        begins: list[tuple[uuid.UUID, str]] = []
        is_cut = False
        for beginning in (name, f"#{name}") if name else ():
            rows, is_more = beginning_with(
                beginning, table="orders", column="reference", newest_first=NEWEST_FIRST_SQL, shops=shops
            )
            begins, is_cut = begins + rows, is_cut or is_more
        exact = [id for id, reference in begins if reference.lstrip("#").upper() == name.upper()]
        yield Hits(exact) if exact else Hits([id for id, _ in begins], is_cut)
        yield self._addressed(text, shops)
        yield self._newest(text, shops, part="" if exact else name)
        if is_part(text):
            only, values = "true", []
            if shops.sources is not None:
                only = "(SELECT source FROM orders WHERE id = read.order_id) = ANY(%s)"
                values = [sorted(shops.sources)]
            yield find_parts(
                text,
                table="shipments",
                column="tracking_number",
                newest_first="shipped_at DESC NULLS LAST, id DESC",
                id="order_id",
                only=only,
                values=values,
            )

    def _addressed(self, text: str, shops: Binding) -> Hits:
        """Return the orders whose address has this text before its @, in any case."""
        if text.startswith("@"):
            return Hits([])
        rows, is_cut = beginning_with(
            f"{text.rstrip('@')}@",
            table="orders",
            column="email",
            newest_first=NEWEST_FIRST_SQL,
            shops=shops,
        )
        return Hits([id for id, _ in rows], is_cut)

    def _newest(self, text: str, shops: Binding, *, part: str) -> Hits:
        """Search the newest `READ` orders by words of the name, by domain, and by a part of the reference.

        An index for any of these would make each order dearer than the rest of its row's indexes may.
        """
        conditions: list[str] = []
        values: list[Any] = []
        words = [] if text.startswith("@") else beginnings_of_words(text)
        if words:
            conditions.append(f"({' AND '.join(['name ~* %s'] * len(words))})")
            values += words
        if domain := domain_of(text.removeprefix("@")):
            conditions.append("lower(split_part(email, '@', 2)) = lower(%s)")
            values.append(domain)
        if is_part(part):
            conditions.append("upper(reference) LIKE upper(%s)")
            values.append(containing(part))
        if not conditions:
            return Hits([])
        is_theirs = ""
        if shops.sources is not None:
            is_theirs = " AND source = ANY(%s)"
            values.append(sorted(shops.sources))
        sql = f"""
            SELECT id FROM (
                SELECT id, created_at, source, name, email, reference FROM orders
                ORDER BY {NEWEST_FIRST_SQL} LIMIT {READ}
            ) AS newest WHERE ({" OR ".join(conditions)}){is_theirs}
            ORDER BY {NEWEST_FIRST_SQL} LIMIT {LIMIT + 1}
        """  # noqa: S608 - our names
        with connections[replica.alias()].cursor() as cursor:
            cursor.execute(sql, values)
            return Hits.of([id for (id,) in cursor.fetchall()])


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

    class Fulfilment(models.TextChoices):
        NONE = "none"
        PART_SHIPPED = "part_shipped"
        SHIPPED = "shipped"
        DELIVERED = "delivered"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    status = models.CharField(max_length=20, choices=Status, default=Status.PENDING)
    # Computed by orders.parcels. An order without shipments has "none", whatever its status.
    fulfilment = models.CharField(
        max_length=20, choices=Fulfilment, default=Fulfilment.NONE, db_default="none", editable=False
    )
    # Grows by one with every event. If another system owns the order, the highest sequence of its events.
    version = models.PositiveIntegerField(default=1)

    user_id = models.UUIDField()
    email = models.CharField(max_length=254)
    name = models.CharField(max_length=200, default="", blank=True)
    locale = models.CharField(max_length=35, default="en")
    reference = models.CharField(max_length=100, default="", blank=True)
    # The system that owns the order and alone changes it (orders.inbound.external), or "" for this system.
    source = models.CharField(max_length=100, default="", db_default="", blank=True, editable=False)

    # A list of {sku, name, quantity, unit_amount}, and the `total_amount` that the shop shows for a line, if
    # it gives one. An item that stands for `lines` has their sum (orders.breakdown).
    items = models.JSONField(default=list, blank=True)
    # A list of {kind, amount}, with a `label` and `included` if they are given.
    charges = models.JSONField(default=list, db_default=[], blank=True)
    # The members that orders.fields.DETAIL_NAMES has, as far as the order has them.
    details = models.JSONField(default=dict, db_default={}, blank=True)
    total_amount = models.BigIntegerField()
    refunded_amount = models.BigIntegerField(default=0)
    currency = models.CharField(max_length=3, default="USD")

    # What was odd about changes, for the timeline: a list of {at, text} without personal data.
    warnings = models.JSONField(default=list, db_default=[], blank=True, editable=False)
    correlation_id = models.CharField(max_length=128, default="", blank=True)
    traceparent = models.CharField(max_length=55, default="", db_default="", editable=False)

    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)
    # Tells two orders of a connected shop apart that got the same number, after the shop was set up again.
    shop_key = models.CharField(max_length=32, default="", db_default="", editable=False)
    # When the system that owns the order last saved it, by its clock, as far as a connection told.
    reported_at = models.DateTimeField(null=True, editable=False)
    paid_at = models.DateTimeField(null=True, editable=False)
    stock_reserved_at = models.DateTimeField(null=True, editable=False)
    completed_at = models.DateTimeField(null=True, editable=False)
    # Since when the first parcel waits for the payment, so that a payment need not look for parcels.
    untold_since = models.DateTimeField(null=True, editable=False)
    # When a person gave the order of another system an address. Later reports without one keep it.
    address_corrected_at = models.DateTimeField(null=True, editable=False)
    # The time of the oldest `UnexpectedPayment` that is not returned. Each answer shows it without another
    # statement.
    unexpected_payment_at = models.DateTimeField(null=True, editable=False)

    in_shops = staticmethod(by_source)

    objects = OrderQuerySet.as_manager()

    class Meta:
        db_table = "orders"
        permissions = [
            ("correct_address", "Can correct an order's address"),
            ("export_person", "Can export a person's data"),
            ("erase_person", "Can erase a person's data"),
        ]
        # Lists read the indexes by time backwards. Pages of an index into which values come in ascending
        # order are full, and otherwise half empty.
        indexes = [
            # GET /orders, also of a period; the admin's list; the chart of placed orders
            models.Index(fields=["created_at", "id"], name="orders_newest"),
            # GET /orders?user_id=
            models.Index(fields=["user_id", "created_at", "id"], name="orders_user_newest"),
            # GET /orders?status=, the admin's filter
            models.Index(fields=["status", "created_at", "id"], name="orders_status_newest"),
            # the admin's filter of what left in parcels
            models.Index(
                fields=["fulfilment", "created_at", "id"],
                name="orders_fulfilment_newest",
                condition=~Q(fulfilment="none"),
            ),
            # the admin's search by a reference or its beginning, in any case
            models.Index(
                any_case("reference"),
                F("created_at").desc(),
                F("id").desc(),
                name="orders_reference",
                condition=~Q(reference=""),
            ),
            # GET /orders?reference=
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
            # stuck orders; the first has the unconfirmed, too, and the second finds the last confirmed one
            models.Index(fields=["status", "paid_at"], name="orders_unshipped", condition=UNSHIPPED),
            models.Index(
                fields=["status", "stock_reserved_at"],
                name="orders_reserved",
                condition=Q(source="", stock_reserved_at__isnull=False),
            ),
            models.Index(
                fields=["updated_at"], name="orders_unrefunded", condition=STUCK["unrefunded"].condition
            ),
            models.Index(
                fields=["unexpected_payment_at"],
                name="orders_unexpected_payment",
                condition=STUCK["unexpected_payment"].condition,
            ),
            # the admin's search box
            HashIndex(fields=["correlation_id"], name="orders_correlation"),
            # GET /orders?email=, the admin's search by address or its beginning, a person's data
            models.Index(any_case("email"), F("created_at").desc(), F("id").desc(), name="orders_email"),
        ]
        # PostgreSQL parses all of them in every statement that writes an order. Each says what no other says.
        constraints = [
            # what another system reports is a fact, of whatever amount
            models.CheckConstraint(
                condition=Q(total_amount__gte=1, total_amount__lte=10**12) | ~Q(source=""),
                name="orders_total_in_range",
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
            models.CheckConstraint(
                condition=Q(currency__regex=r"^[A-Z]{3}$") | ~Q(source=""), name="orders_currency_form"
            ),
        ]

    def __str__(self) -> str:
        return self.reference or str(self.id)

    @property
    def refundable_amount(self) -> int:
        """The minor units that can still be refunded."""
        return self.total_amount - self.refunded_amount


class UnexpectedPayment(models.Model):
    """A payment that its order could not take, and that must be returned.

    It is saved with the change of its order. The row stays, so that a repeat of the event is recognised.
    """

    id = models.UUIDField(primary_key=True, editable=False)  # of the payment's event
    # As of OrderRefund, without a constraint.
    order = models.ForeignKey(Order, models.CASCADE, db_constraint=False, db_index=False)
    # In the order's minor units. NULL if the payment was in another currency.
    amount = models.BigIntegerField(null=True)
    at = models.DateTimeField()
    returned_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "unexpected_payments"
        default_permissions = ()
        indexes = [
            # an order's payments, oldest first
            models.Index(fields=["order", "at"], name="unexpected_payments_of_order"),
        ]

    def __str__(self) -> str:
        return str(self.id)


class RefundWay(enum.StrEnum):
    """The way by which a refund was reported."""

    API = "api"
    EVENT = "event"
    SHOP = "shop"  # the order of a connected shop has it


class OrderRefund(models.Model):
    """A refund, in the order's minor units. It is saved with the change of its order."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    # A constraint would lock the orders in its migration. The change locks the order that it refunds.
    order = models.ForeignKey(Order, models.CASCADE, db_constraint=False, db_index=False)
    # The id of the payment service. Orderpost counts each one of an order once. NULL if it gave none.
    refund_id = models.CharField(max_length=100, null=True)
    amount = models.BigIntegerField()
    way = models.CharField(max_length=10)  # a RefundWay
    # It returned a payment that the order could not take. Such a refund is not in `refunded_amount`.
    is_unexpected_payment = models.BooleanField(db_default=False)
    at = models.DateTimeField()

    class Meta:
        db_table = "refunds"
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["order", "refund_id"], name="refunds_once")]

    def __str__(self) -> str:
        return self.refund_id or str(self.id)


#: The columns of a parcel that an erasure empties: a link may lead to a person.
TRACKING = ("carrier", "tracking_number", "tracking_url")


class Shipment(models.Model):
    """A parcel of an order. Whoever changes it has locked the order."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    # As of OrderRefund, without a constraint.
    order = models.ForeignKey(Order, models.CASCADE, db_constraint=False, db_index=False)
    # The sender's name of the parcel, so that two ways may tell of one parcel. NULL if it has none.
    reference = models.CharField(max_length=100, null=True)
    carrier = models.CharField(max_length=100, default="", blank=True)
    tracking_number = models.CharField(max_length=100, default="", blank=True)
    tracking_url = models.CharField(max_length=2000, default="", blank=True)
    # A list of {item, quantity}, `item` is the index of an order's item. Empty: nobody said what it has.
    lines = models.JSONField(default=list, blank=True)
    # For a shipment of another system's order, the highest sequence of the events about it.
    sequence = models.PositiveIntegerField(null=True)
    # NULL while only the delivery or the return of the parcel was told.
    shipped_at = models.DateTimeField(null=True)
    delivered_at = models.DateTimeField(null=True)
    returned_at = models.DateTimeField(null=True)
    # When it came, if before the payment. NULL once it is told, by a version and an event of the order.
    untold_since = models.DateTimeField(null=True)

    class Meta:
        db_table = "shipments"
        default_permissions = ()
        constraints = [
            # also the index of an order's shipments
            models.UniqueConstraint(fields=["order", "reference"], name="shipments_once"),
        ]
        indexes = [
            # whether this shop tells of its parcels here
            models.Index(fields=["shipped_at"], name="shipments_own", condition=Q(sequence=None)),
            # those that waited long enough for the payment (orders.untold)
            models.Index(
                fields=["untold_since"], name="shipments_untold", condition=Q(untold_since__isnull=False)
            ),
            # the admin's search by a part of a tracking number
            parts_index("tracking_number", name="shipments_tracking_parts"),
        ]

    def __str__(self) -> str:
        return self.reference or str(self.id)
