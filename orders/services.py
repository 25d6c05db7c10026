"""Every change of an order: place, pay, confirm, complete, cancel, refund, and the state of another system.

Each function locks the order, decides, and returns an `OrderChange`. It has the order in its new state and
the rows that belong to it: the event of the change and its e-mails, rendered. Nothing is saved before `save`,
which writes them all in one statement.

    with transaction.atomic():
        change = services.pay(order_id=order_id)
        change.save()

The caller owns the transaction and may save more rows with the change, such as the stored answer of its
request. Requests, inbound events, commands and jobs all change orders like this.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from django.conf import settings
from django.db import models
from django.db.models.functions import Now
from opentelemetry.trace import SpanKind

from events.publishing.write import new_event
from notifications.content.new_emails import new_emails
from notifications.states.transitions import NO_ADDRESS, Withheld
from orders.bodies import GIVEN_COLUMNS
from orders.breakdown import find_rest, has_gap
from orders.emails import default_locale, email_context, fulfilment_before, is_private
from orders.events import EVENTS, event_payload
from orders.fields import ERASED_VALUES, erase_charges, erase_items, pack_details
from orders.models import TRACKING, Order, OrderRefund, RefundWay, Shipment, UnexpectedPayment
from orders.parcels import ENDS, SHIPPABLE, compute_fulfilment, event_details, read_shipments, shown
from orders.refunds import describe_doubt, may_be_one, read_similar
from orders.transitions import Action, ChangeRefused, ExternallyOwned, check, next_status
from retention.person import ERASED_AT
from runtime.database.save import lock_row, lock_row_and_ask, save_together
from runtime.database.transactions import after_commit, require_transaction
from runtime.personal_data import ERASED_ADDRESS, address_hash
from runtime.telemetry import context, tracing

log = structlog.get_logger(__name__)


class OrderNotFound(LookupError):
    """No order has that id."""


class RefundExceedsBalance(ChangeRefused):
    """The amount exceeds the balance. `left`, the balance, is in minor units."""

    def __init__(self, *, amount: int | None, left: int) -> None:
        self.left = left
        asked = "Nothing" if left == 0 else f"Only {left}"
        super().__init__(f"{asked} is left to refund" + (f", not {amount}." if amount else "."))


class RefundExists(ChangeRefused):
    """A refund with this id has another amount. `amount`, that of the first, is in minor units."""

    def __init__(self, *, amount: int) -> None:
        self.amount = amount
        super().__init__(f"A refund of {amount} has this id. Use another id for another refund.")


class OtherMoney(ChangeRefused):
    """A payment, a refund or a report names an amount or a currency that is not the order's."""


class OtherOwner(ChangeRefused):
    """Another system reports an order that is not its own. The text names the owner."""


class PaidBefore(ChangeRefused):
    """A payment failed after the order had been paid."""


class NothingUnexpected(ChangeRefused):
    """The order has no such payment to return."""


#: The columns of an order of another system that the event with the highest sequence decides. `version` is
#: that sequence.
REPORTED_COLUMNS = ("status", "version", "refunded_amount", *GIVEN_COLUMNS)
#: The columns with the time of one kind of event. The earliest time counts, in whatever order events arrive.
REPORTED_TIMES = {"order.paid": "paid_at", "order.completed": "completed_at"}
#: Why the e-mails to an order's address are withheld.
WITHHELD_TO = {"": NO_ADDRESS.last_error, ERASED_ADDRESS: "erased"}
#: A change tells so many parcels that waited for it. The poll tells the others.
MOST_TOLD = 100
#: An order keeps the newest warnings.
MOST_WARNINGS = 100
#: The fields of an item in the event.
_LINE = ("sku", "quantity")


class OrderChange:
    """A decided change: the order in its new state, and the rows that must be saved with it."""

    def __init__(self, order: Order, now: dt.datetime) -> None:
        self.order, self.now = order, now
        self.rows: list[models.Model] = [order]
        #: What was odd, for whoever asked for the change. The order keeps it for its timeline.
        self.warnings: list[str] = []
        #: Whether the order has an address, and had none before.
        self.has_new_address = False
        #: The state in which its e-mails are written, if none of them is to leave.
        self.withheld: Withheld | None = None
        #: Why the change sends no e-mail, or "" if it sends one.
        self.why_withheld = "this event sends none"

    def warn(self, text: str, *, about: str = "") -> None:
        """Add a warning, which must not quote personal data. The timeline's line says what it is `about`."""
        self.warnings.append(text)
        line = {"at": self.now.isoformat(), "text": f"{about}: {text}" if about else text}
        self.order.warnings = [*self.order.warnings, line][-MOST_WARNINGS:]

    def record(
        self, event: str, *, details: dict[str, Any] | None = None, sends_email: bool = True, **change: Any
    ) -> None:
        """Give the order its next version, and add that version's event and e-mails, if it `sends_email`.

        The event contains `details`. The e-mail's templates get `change` (see `email_context`).
        """
        order = self.order
        if not order._state.adding:
            order.version += 1
            order.updated_at = self.now
        self.rows.append(
            new_event(
                aggregate_type="order",
                aggregate_id=order.id,
                event_type=EVENTS[event].topic,
                sequence=order.version,
                user_id=order.user_id,
                payload=event_payload(order=order, details=details or {}),
            )
        )
        if sends_email:
            self.add_emails(event, shown=order, change={"at": self.now, **change})

    def record_parcel(
        self, event: str, shipment: Shipment, shipments: Sequence[Shipment], *, is_news: bool = True
    ) -> None:
        """Record a change of one of the order's `shipments`, which gives the order its new fulfilment.

        Add the shipment. Send the e-mail about `event` only if it `is_news`.
        """
        self.order.fulfilment = compute_fulfilment(self.order, shipments)
        self.record(
            event,
            details=event_details(self.order, shipment),
            sends_email=is_news,
            **shown(event, self.order, shipment, shipments),
        )
        if shipment not in self.rows:
            self.rows.append(shipment)

    def tell_parcel(self, shipment: Shipment, shipments: Sequence[Shipment]) -> None:
        """Record that a parcel left, and its ends that are known already, as if they came after that.

        The e-mail is about the delivery if there was one. A parcel that came back needs none.
        """
        status = self.order.status
        if status not in SHIPPABLE:
            self.warn(f"A parcel left though the order is {status}.", about="shipment")
        ends = {column: at for column in ENDS if (at := getattr(shipment, column))}
        for column in ("untold_since", *ENDS):
            setattr(shipment, column, None)
        self.record_parcel("order.shipped", shipment, shipments, is_news=not ends)
        for column, at in ends.items():
            setattr(shipment, column, at)
            self.record_parcel(ENDS[column], shipment, shipments, is_news="returned_at" not in ends)

    def tell_waiting(self, *, came_by: dt.datetime | None = None) -> None:
        """Tell the parcels that wait for the payment, or those of them that `came_by` then, oldest first."""
        shipments = read_shipments(self.order)
        waiting = [
            shipment
            for shipment in shipments
            if shipment.untold_since and (came_by is None or shipment.untold_since <= came_by)
        ]
        for shipment in waiting[:MOST_TOLD]:
            self.tell_parcel(lock_shipment(shipment, shipments), shipments)
        times = [shipment.untold_since for shipment in shipments if shipment.untold_since]
        self.order.untold_since = min(times, default=None)

    def add_emails(
        self,
        event: str,
        *,
        shown: Order,
        change: Mapping[str, Any],
        may_exist: bool = False,
    ) -> None:
        """Add the e-mail about `event`, which shows the order `shown`, and the shop's copy of it.

        If it `may_exist`, first check whether the order has an e-mail about this event and version of
        `shown`.
        """
        order = self.order
        emails = new_emails(
            order_id=order.id,
            event_type=event,
            version=shown.version,
            recipient_email=order.email,
            to_name=order.name,
            locale=order.locale,
            source=order.source,
            context=lambda: email_context(order=shown, event_type=event, change=change),
            is_private=is_private(shown, event),
            interval=EVENTS[event].email_interval,
            may_exist=may_exist,
            withheld=self.withheld,
        )
        self.rows += emails
        if emails:
            self.why_withheld = (
                self.withheld.last_error if self.withheld else WITHHELD_TO.get(order.email, "")
            )
        elif event in settings.NOTIFY_ON:
            self.why_withheld = f"already sent for sequence {shown.version}"

    def save(self) -> None:
        """Save the rows in the caller's transaction, as `save_together` does."""
        # A later request has its own trace. Link it to the trace that placed the order.
        link = "" if self.order._state.adding else self.order.traceparent
        span = tracing.begin("save order", kind=SpanKind.CLIENT, links=[link])
        span.set_attribute("db.system.name", "postgresql")
        span.set_attribute("orderpost.order_id", str(self.order.id))
        save_together(*self.rows)
        if span.is_recording():
            after_commit(span.end)


def lock_order(order_id: uuid.UUID) -> OrderChange:
    """Lock an order and begin its change. Raise `OrderNotFound`."""
    order, now = lock_row(Order, order_id)
    if order is None:
        raise OrderNotFound(f"There is no order {order_id}.")
    return OrderChange(order, now)


def lock_shipment(shipment: Shipment, shipments: list[Shipment]) -> Shipment:
    """Return the shipment as `save_together` can write it, and put it into `shipments`."""
    locked, _ = lock_row(Shipment, shipment.id)
    assert locked is not None  # nobody deletes a shipment
    shipments[shipments.index(shipment)] = locked
    return locked


def place(*, now: dt.datetime, items: Sequence[Mapping[str, Any]] = (), **values: Any) -> OrderChange:
    """Make a new, pending order. `values` are its columns and details. Amounts are in minor units.

    `now` is the database's time.
    """
    work = context.current()
    values.setdefault("locale", default_locale(source=""))
    order = Order(
        **pack_details(values),
        items=[dict(item) for item in items],
        correlation_id=work.correlation_id,
        traceparent=work.traceparent,
        created_at=now,
        updated_at=now,
    )
    change = OrderChange(order, now)
    lines = [{key: item[key] for key in _LINE} for item in order.items]
    change.record("order.placed", details={"items": lines})
    return change


def pay(
    *,
    order_id: uuid.UUID,
    paid_at: dt.datetime | None = None,
    amount: int | None = None,
    currency: str | None = None,
) -> OrderChange:
    """Mark an order paid. Then confirm it if its stock was reserved, and tell the parcels that left before.

    `paid_at` is by another service's clock and is kept between the order's time and now. Raise `OtherMoney`
    if `amount` (minor units) or `currency` is given and is not the order's.
    """
    change = lock_order(order_id)
    order, now = change.order, change.now
    status = next_status(order=order, action=Action.PAY)
    _check_payment(order, amount=amount, currency=currency)
    order.status = status
    order.paid_at = max(order.created_at, min(paid_at or now, now))
    change.record("order.paid")
    if order.stock_reserved_at:
        order.status = next_status(order=order, action=Action.CONFIRM)
        change.record("order.confirmed")
    if order.untold_since:
        change.tell_waiting()
    return change


def _check_payment(order: Order, *, amount: int | None, currency: str | None) -> None:
    """Raise `OtherMoney` with both values if a payment is of a part, of too much, or in another currency."""
    if amount in (None, order.total_amount) and currency in (None, order.currency):
        return
    if amount is None:
        values = f"in {currency}, the order in {order.currency}"
    else:
        paid = f"{amount} {currency or ''}".rstrip()
        values = f"of {paid}, the order of {order.total_amount} {order.currency} (in minor units)"
    raise OtherMoney(f"The payment is {values}: return it, or correct the order")


def fail_payment(
    *, order_id: uuid.UUID, failed_at: dt.datetime | None = None, reason_code: str = ""
) -> OrderChange:
    """Record that a payment failed. The order stays pending. The event contains the provider's code.

    Once the order is paid or ended, nothing changes. Raise `PaidBefore` if `failed_at` is later than the
    payment and the money was not returned.
    """
    change = lock_order(order_id)
    order = change.order
    if order.source:
        raise ExternallyOwned(order=order)
    is_returned = order.status in (Order.Status.CANCELLED, Order.Status.REFUNDED)
    if failed_at and order.paid_at and failed_at > order.paid_at and not is_returned:
        raise PaidBefore("the order was paid before: check whether the money is there")
    if order.status == Order.Status.PENDING:
        details = {"reasonCode": reason_code} if reason_code else {}
        change.record("order.payment_failed", details=details)
    return change


def confirm(*, order_id: uuid.UUID, may_be_reserved: bool = False) -> OrderChange:
    """Confirm a paid order. For a pending order, only record that its stock is reserved.

    That record makes no event, no e-mail and no new version. If the order `may_be_reserved`, a repeated
    reservation changes nothing.
    """
    change = lock_order(order_id)
    order = change.order
    if may_be_reserved and order.stock_reserved_at is not None and order.status != Order.Status.CANCELLED:
        return change
    status = next_status(order=order, action=Action.CONFIRM)
    is_pending = status == order.status
    if order.stock_reserved_at is None:
        order.stock_reserved_at = order.updated_at = change.now
    if not is_pending:
        order.status = status
        change.record("order.confirmed")
    return change


def complete(*, order_id: uuid.UUID, tracking_url: str = "") -> OrderChange:
    """Complete an order. A part-refunded order keeps its status.

    The event of an erased person's order has no tracking link, which may lead to the person.
    """
    change = lock_order(order_id)
    order = change.order
    order.status = next_status(order=order, action=Action.COMPLETE)
    order.completed_at = change.now
    before = fulfilment_before(order.fulfilment)
    if order.fulfilment == Order.Fulfilment.PART_SHIPPED:  # nothing else will follow
        order.fulfilment = compute_fulfilment(order, read_shipments(order))
    details = {"trackingUrl": tracking_url} if tracking_url and order.email != ERASED_ADDRESS else {}
    change.record("order.completed", details=details, tracking_url=tracking_url, **before)
    return change


def cancel(
    *,
    order_id: uuid.UUID,
    reason: str = "",
    cause: Mapping[str, str] | None = None,
    may_be_cancelled: bool = False,
) -> OrderChange:
    """Cancel an order. A paid one can be refunded afterwards.

    The e-mail shows `reason` to the customer. A reason may hold a name, and the event tells only that there
    is one. Only the event contains `cause`: codes for other services. If the order `may_be_cancelled`, a
    repeat changes nothing.
    """
    change = lock_order(order_id)
    order = change.order
    if may_be_cancelled and order.status == Order.Status.CANCELLED:
        return change
    order.status = next_status(order=order, action=Action.CANCEL)
    was_paid = order.paid_at is not None
    details = {"wasPaid": was_paid, "hasReason": bool(reason), **(cause or {})}
    change.record("order.cancelled", details=details, reason=reason, was_paid=was_paid)
    if order.untold_since:
        change.tell_waiting()
    return change


def refund(
    *,
    order_id: uuid.UUID,
    amount: int | None = None,
    currency: str | None = None,
    refund_id: str | None = None,
    way: RefundWay = RefundWay.API,
) -> OrderChange:
    """Refund `amount` minor units, or the whole balance.

    A `refund_id` counts once: its repeat changes nothing, whatever the order's status. Raise `RefundExists`
    if the repeat has another amount, `RefundExceedsBalance` if less is left, and `OtherMoney` if `currency`
    is given and is not the order's.

    An event returns the unexpected payment of exactly its amount, or else the oldest that is large enough,
    and changes neither the status nor the refunded amount. Without an amount, it returns all of the oldest.
    """
    change = lock_order(order_id)
    order, now = change.order, change.now
    if order.source:
        raise ExternallyOwned(order=order)
    if currency not in (None, order.currency):
        raise OtherMoney(
            f"The refund is in {currency}, the order in {order.currency}: check what the customer got back"
        )
    unexpected = _find_unexpected(order, amount=amount) if way is RefundWay.EVENT else None
    balance = order.refundable_amount if unexpected is None else unexpected.amount or 0
    refunded = balance if amount is None else amount
    refund = OrderRefund(
        order_id=order.id,
        refund_id=refund_id,
        amount=refunded,
        way=way,
        is_unexpected_payment=unexpected is not None,
        at=now,
    )
    earlier = read_similar(refund)
    for other in earlier:
        if refund_id is not None and other.refund_id == refund_id:
            if amount not in (None, other.amount):
                raise RefundExists(amount=other.amount)
            return change
    if unexpected is not None:
        _end_unexpected(change, unexpected.id)
    else:
        check(order=order, action=Action.REFUND)
        if not 0 < refunded <= balance:
            raise RefundExceedsBalance(amount=amount, left=balance)
        left = balance - refunded
        order.status = next_status(order=order, action=Action.REFUND, left=left)
        order.refunded_amount += refunded
        event = "order.part_refunded" if left else "order.refunded"
        change.record(event, details={"amount": refunded}, amount=refunded)
    change.rows.append(refund)
    if doubted := next((other for other in earlier if may_be_one(refund, other)), None):
        change.warn(describe_doubt(refund, doubted))
    return change


def note_unexpected_payment(
    *, order_id: uuid.UUID, event_id: uuid.UUID, amount: int | None = None, currency: str | None = None
) -> OrderChange:
    """Record that a payment came that the order cannot take, and must be returned.

    Without an `amount` it is the order's total. A repeat of the event changes nothing, also after the payment
    was returned. This makes no event and no new version.
    """
    change = lock_order(order_id)
    order = change.order
    if UnexpectedPayment.objects.filter(id=event_id).exists():
        return change
    is_other = currency not in (None, order.currency)
    owed = None if is_other else amount or order.total_amount
    change.rows.append(UnexpectedPayment(id=event_id, order_id=order.id, amount=owed, at=change.now))
    order.updated_at = change.now
    order.unexpected_payment_at = order.unexpected_payment_at or change.now
    after_commit(lambda: log.warning("unexpected payment", order_id=str(order_id), event_id=str(event_id)))
    return change


def end_unexpected_payment(*, order_id: uuid.UUID, event_id: uuid.UUID) -> OrderChange:
    """Record that the payment of an event was returned. Raise `NothingUnexpected`."""
    change = lock_order(order_id)
    if not _open_payments(change.order).filter(id=event_id).exists():
        raise NothingUnexpected("This payment is not, or no longer, to be returned.")
    _end_unexpected(change, event_id)
    return change


def _open_payments(order: Order) -> models.QuerySet[UnexpectedPayment]:
    """Return the payments of an order that must be returned, oldest first."""
    return UnexpectedPayment.objects.filter(order_id=order.id, returned_at=None).order_by("at", "id")


def _find_unexpected(order: Order, *, amount: int | None) -> UnexpectedPayment | None:
    """Return the unexpected payment that a refund of `amount`, or of all of one, returns."""
    if order.unexpected_payment_at is None:
        return None
    payments = [payment for payment in _open_payments(order) if payment.amount]
    exact = (payment for payment in payments if payment.amount == amount)
    enough = (payment for payment in payments if amount is None or amount <= (payment.amount or 0))
    return next(exact, None) or next(enough, None)


def _end_unexpected(change: OrderChange, event_id: uuid.UUID) -> None:
    """Add to the change that a payment was returned."""
    payment, _ = lock_row(UnexpectedPayment, event_id)
    assert payment is not None  # the order's lock keeps it
    payment.returned_at = change.order.updated_at = change.now
    change.rows.append(payment)
    others = _open_payments(change.order).exclude(id=event_id)
    change.order.unexpected_payment_at = others.values_list("at", flat=True).first()


def correct_address(*, order_id: uuid.UUID, email: str) -> OrderChange:
    """Send later e-mails of an order to another address. This makes no event and no new version.

    Of another system's order, only an empty address can be corrected. The correction stays until an event has
    a usable address.
    """
    change = lock_order(order_id)
    order = change.order
    if order.source and order.email:
        raise ExternallyOwned(order=order)
    if order.source:
        change.warn("A person gave the order an address.", about="email")
        order.address_corrected_at = change.now
    order.email, order.updated_at = email, change.now
    after_commit(lambda: log.info("order's address corrected", order_id=str(order_id)))
    return change


def erase(*, orders: Sequence[Order]) -> dict[str, int]:
    """Erase the personal data of orders that the caller has locked in id order.

    Return the number of changed rows by table.
    """
    require_transaction("an erasure")
    for order in orders:
        order.items, order.charges = erase_items(order.items), erase_charges(order.charges)
    Order.objects.bulk_update(orders, ["items", "charges"])
    ids = [order.id for order in orders]
    empty = dict.fromkeys(TRACKING, "")
    parcels = Shipment.objects.filter(order_id__in=ids).exclude(**empty)
    return {
        "shipments": parcels.update(**empty),
        "orders": Order.objects.filter(id__in=ids).update(**ERASED_VALUES, updated_at=Now()),
    }


def apply_reported_state(
    *,
    reported: Order,
    event: str,
    at: dt.datetime | None,
    placed_at: dt.datetime | None,
    is_history: bool,
    sends_email: bool = True,
    warnings: Sequence[str] = (),
    withheld: Withheld | None = None,
    may_change_currency: bool = False,
    **change: Any,
) -> OrderChange:
    """Take over the state that another system reports of its order, and send the e-mail of its event.

    `reported` is the order after the change of `event`, which happened `at`. An event that arrives after a
    later one (overtaken) changes only the order's times, but still sends its e-mail, which shows the order as
    reported and goes to the newest address. Without `sends_email`, the caller adds it. If `withheld` is
    given, it is written in this state. History sends none, and neither does an order whose address was not
    known before its person was erased. The e-mail's templates get `change`. The change has the `warnings`
    about the report's unusable values. `reported` may have the times of the payment and the completion.
    Raise `OtherOwner`, or `OtherMoney` if the report has another currency, is not history and may not change
    it. Two first events at the same moment violate the primary key of orders: the second must
    try again.
    """
    order, now, erased_at = lock_row_and_ask(
        Order, reported.id, also_select=ERASED_AT, values=[address_hash(reported.email)]
    )
    at = min(at or now, now)
    is_early = placed_at is not None and placed_at > now
    reported.created_at = at if placed_at is None or is_early else placed_at
    overtaken = order is not None and reported.version <= order.version
    had_no_address = order is not None and not order.email
    if (order is None or had_no_address) and erased_at is not None and reported.created_at < erased_at:
        _erase_report(reported)
    before = (order.items, order.completed_at) if order is not None else None
    has_told_gap = overtaken or (order is not None and _has_gap(order))
    if order is None:
        order = reported
    else:
        _check_report(order, reported, is_free=is_history or may_change_currency)
        if order.email == ERASED_ADDRESS:  # an erased person stays erased
            _erase_report(reported)
        elif not reported.email and order.address_corrected_at:
            reported.email = order.email
        for name in () if overtaken else REPORTED_COLUMNS:
            setattr(order, name, getattr(reported, name))
        # The earliest time counts: queries search for e-mails and events from `created_at` on.
        order.created_at = min(order.created_at, reported.created_at)
    for name, column in REPORTED_TIMES.items():
        # An event of history has the time of the import.
        of_event = at if name == event and not is_history else None
        times = filter(None, [getattr(order, column), getattr(reported, column), of_event])
        setattr(order, column, min(times, default=None))
    order.updated_at = now
    applied = OrderChange(order, now)
    applied.withheld = withheld
    applied.has_new_address = had_no_address and bool(order.email)
    early = ["placedAt: It is in the future. The event's time is used."] if is_early else []
    gap = [] if has_told_gap else _describe_gap(reported)
    for warning in (*warnings, *early, *gap):
        applied.warn(warning, about=f"{event}, sequence {reported.version}")
    # Without a parcel that is away, it stays none.
    if order.fulfilment != Order.Fulfilment.NONE and before != (order.items, order.completed_at):
        order.fulfilment = compute_fulfilment(order, read_shipments(order))
    if is_history:
        applied.why_withheld = "notify is false"
    elif sends_email:
        if event == "order.cancelled":
            change.setdefault("was_paid", order.paid_at is not None or reported.refunded_amount > 0)
        applied.add_emails(event, shown=reported, change={"at": at, **change}, may_exist=overtaken)
    source, sequence = order.source, reported.version
    after_commit(
        lambda: log.info(
            "external order updated",
            order_id=str(order.id),
            source=source,
            change=event,
            sequence=sequence,
            overtaken=overtaken,
        )
    )
    return applied


def _has_gap(order: Order) -> bool:
    return has_gap(items=order.items, charges=order.charges, total=order.total_amount)


def _describe_gap(order: Order) -> list[str]:
    """Return a warning if the lines and charges of a report differ from its total by more than rounding."""
    if not _has_gap(order):
        return []
    rest = find_rest(items=order.items, charges=order.charges, total=order.total_amount)
    shown = "other charges" if rest > 0 else "other reductions"
    return [
        f"totalAmount: The items and charges give {order.total_amount - rest}, not {order.total_amount}."
        f" E-mails show the difference of {rest} as {shown}."
    ]


def _erase_report(reported: Order) -> None:
    """Take the personal data out of the report of an erased person's order."""
    for name, erased in ERASED_VALUES.items():
        setattr(reported, name, erased)
    reported.items, reported.charges = erase_items(reported.items), erase_charges(reported.charges)


def _check_report(order: Order, reported: Order, *, is_free: bool) -> None:
    if order.source != reported.source:
        raise OtherOwner(f"the order belongs to {order.source or 'this system'}, not to {reported.source}")
    # The e-mails would show sums of two currencies. History sends none, and can correct the currency.
    if reported.currency != order.currency and not is_free:
        raise OtherMoney(
            f"data.currency: The event is in {reported.currency}, the order in {order.currency}. Correct the"
            " event, or the order by an event with notify: false."
        )
