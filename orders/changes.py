"""Decide each change of an order: its next state, its events and its e-mails.

A function takes the order as it was read and returns an `OrderChange`, without writing it. Then
orders.api.changing writes it for requests, events.consuming.inbox for inbound events, and orders.writing for
commands.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog
from opentelemetry.trace import SpanKind

from events.publishing.write import event_insert
from notifications.services import email_part
from orders.emails import default_locale, email_context
from orders.events import EVENTS, event_payload
from orders.fields import ERASED_VALUES, ITEM_FIELDS, Use, erase_items, names
from orders.models import Order, Seen
from orders.transitions import Action, ChangeRefused, ExternallyOwned, check, next_status
from runtime.database.statement import StatementPart, Written, execute
from runtime.personal_data import ERASED_ADDRESS
from runtime.telemetry import context, tracing

log = structlog.get_logger(__name__)


class RefundExceedsBalance(ChangeRefused):
    """The amount exceeds the balance. `left`, the balance, is in minor units."""

    def __init__(self, *, amount: int | None, left: int) -> None:
        self.left = left
        asked = "Nothing" if left == 0 else f"Only {left}"
        super().__init__(f"{asked} is left to refund" + (f", not {amount}." if amount else "."))


class OtherMoney(ChangeRefused):
    """A payment or a refund names an amount or a currency that is not the order's."""


#: The columns that a change writes. Each writes all of them, so that all share one prepared statement.
COLUMNS = names(Use.CHANGED)
#: The columns of an order of another system that the event with the highest sequence decides. `version` is
#: that sequence.
STATE = ("status", "version", "refunded_amount", *names(Use.GIVEN))
#: The columns with the time of one kind of event. The earliest time counts, in whatever order events arrive.
TIMES = {"order.paid": "paid_at", "order.completed": "completed_at"}
#: The columns that an event of another system writes.
ADOPTED_COLUMNS = (*STATE, *TIMES.values(), "created_at", "updated_at")
#: The fields of an item in the event.
_LINE = names(Use.EVENTS, ITEM_FIELDS)


class OrderChange:
    """A change that is decided but not yet written. `order` already has its new state."""

    def __init__(
        self,
        *,
        order: Order,
        now: dt.datetime,
        row: str | None = None,
        columns: tuple[str, ...] = COLUMNS,
    ) -> None:
        self.order = order
        self.now = now
        #: `row` of the order's `Seen`; None for a new order.
        self.row = row
        #: False if the order already has the wanted state.
        self.needed = True
        #: Called after the commit if the order was written.
        self.on_commit: Callable[[], None] | None = None
        self._columns = columns
        self._inserts: list[StatementPart] = []

    def record(self, event: str, *, details: dict[str, Any] | None = None, **change: Any) -> None:
        """Add the event and the e-mail of a new version.

        The event contains `details`. The e-mail's templates get `change` (see `email_context`).
        """
        order, now = self.order, self.now
        self._inserts.append(
            event_insert(
                aggregate_type="order",
                aggregate_id=order.id,
                event_type=EVENTS[event].topic,
                sequence=order.version,
                user_id=order.user_id,
                payload=event_payload(order=order, details=details or {}),
            )
        )
        self.add_email(event, shown=order, change={"at": now, **change})

    def add_email(
        self, event: str, *, shown: Order, change: Mapping[str, Any], may_exist: bool = False
    ) -> None:
        """Add the e-mail about `event`, to the order's address. It shows the order `shown`.

        With `may_exist`, write it only if the order has no e-mail about this event and version of `shown`.
        """
        order = self.order
        email = email_part(
            order_id=order.id,
            event_type=event,
            version=shown.version,
            recipient_email=order.email,
            to_name=order.name,
            locale=order.locale,
            source=order.source,
            context=lambda: email_context(order=shown, change=change),
            interval=EVENTS[event].email_interval,
            may_exist=may_exist,
        )
        if email is not None:
            self._inserts.append(email)

    def write(self, *, guard: StatementPart | None = None, inserts: Sequence[StatementPart] = ()) -> Written:
        """Write the order, its events, its e-mails and `inserts` in one statement.

        Write nothing if `guard` has no row, or if the order's row was changed since it was read.
        """
        if not self.needed and not inserts:
            return Written(has_guard=True, has_change=True)
        # A later request has its own trace, so link it to the trace that placed the order.
        link = "" if self.row is None else self.order.traceparent
        with tracing.span("save order", kind=SpanKind.CLIENT, links=[link]) as span:
            span.set_attribute("db.system.name", "postgresql")
            span.set_attribute("orderpost.order_id", str(self.order.id))
            return execute(guard=guard, change=self._order_part(), inserts=[*self._inserts, *inserts])

    def seen_after(self, written: Written) -> Seen:
        """Return the order as the change left it, for the next decision."""
        row = written.row_version or self.row
        assert row is not None
        return Seen(self.order, self.now, row)

    def _order_part(self) -> StatementPart | None:
        if not self.needed:
            return None
        if self.row is None:
            part = Order.objects.insert_part(self.order)
        else:
            part = Order.objects.update_part(self.order, row=self.row, columns=self._columns)
        return dataclasses.replace(part, on_commit=self.on_commit)


#: Takes `Seen`, and the values of the change by keyword. Raises `ChangeRefused` (orders.transitions).
Decide = Callable[..., OrderChange]


def _changed(seen: Seen) -> OrderChange:
    """Begin a change that makes a new version."""
    seen.order.version += 1
    return _unversioned(seen)


def _unversioned(seen: Seen) -> OrderChange:
    seen.order.updated_at = seen.now
    return OrderChange(order=seen.order, now=seen.now, row=seen.row)


def unchanged(seen: Seen) -> OrderChange:
    """Change nothing, because the order already has the wanted state."""
    change = OrderChange(order=seen.order, now=seen.now, row=seen.row)
    change.needed = False
    return change


def place(*, now: dt.datetime, items: Sequence[Mapping[str, Any]] = (), **values: Any) -> OrderChange:
    """Make a new, pending order. `values` are columns of the order. Amounts are in minor units."""
    work = context.current()
    values.setdefault("locale", default_locale(source=""))
    order = Order(
        **values,
        items=[dict(item) for item in items],
        correlation_id=work.correlation_id,
        traceparent=work.traceparent,
        created_at=now,
        updated_at=now,
    )
    change = OrderChange(order=order, now=now)
    lines = [{key: item[key] for key in _LINE} for item in order.items]
    change.record("order.placed", details={"items": lines})
    return change


def pay(
    seen: Seen,
    *,
    paid_at: dt.datetime | None = None,
    amount: int | None = None,
    currency: str | None = None,
) -> OrderChange:
    """Mark an order paid. Confirm it in the same change if its stock was reserved before.

    `paid_at` is by another service's clock, so it is kept between the order's time and now. Raise
    `OtherMoney` if `amount` (minor units) or `currency` is given and is not the order's.
    """
    order = seen.order
    check(order=order, action=Action.PAY)
    _check_payment(order, amount=amount, currency=currency)
    order.status = next_status(order=order, action=Action.PAY)
    order.paid_at = max(order.created_at, min(paid_at or seen.now, seen.now))
    change = _changed(seen)
    change.record("order.paid")
    if order.stock_reserved_at:
        order.status = next_status(order=order, action=Action.CONFIRM)
        order.version += 1
        change.record("order.confirmed")
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


def fail_payment(seen: Seen, *, reason_code: str = "") -> OrderChange:
    """Record that a payment failed. The order stays pending. The event contains the provider's code.

    Once the order is paid or ended, nothing changes.
    """
    order = seen.order
    if order.source:
        raise ExternallyOwned(order=order)
    if order.status != Order.Status.PENDING:
        return unchanged(seen)
    change = _changed(seen)
    change.record("order.payment_failed", details={"reasonCode": reason_code} if reason_code else {})
    return change


def confirm(seen: Seen) -> OrderChange:
    """Confirm a paid order. For a pending order, only record that its stock is reserved.

    That record makes no event, no e-mail and no new version.
    """
    order = seen.order
    status = next_status(order=order, action=Action.CONFIRM)
    if status == order.status:
        if order.stock_reserved_at is not None:
            return unchanged(seen)
        order.stock_reserved_at = seen.now
        return _unversioned(seen)
    order.status = status
    order.stock_reserved_at = order.stock_reserved_at or seen.now
    change = _changed(seen)
    change.record("order.confirmed")
    return change


def complete(seen: Seen, *, tracking_url: str = "") -> OrderChange:
    """Complete an order. A part-refunded order keeps its status.

    The event of an erased person's order has no tracking link, because it may lead to the person.
    """
    order = seen.order
    order.status = next_status(order=order, action=Action.COMPLETE)
    order.completed_at = seen.now
    change = _changed(seen)
    details = {"trackingUrl": tracking_url} if tracking_url and order.email != ERASED_ADDRESS else {}
    change.record("order.completed", details=details, tracking_url=tracking_url)
    return change


def cancel(seen: Seen, *, reason: str = "", cause: Mapping[str, str] | None = None) -> OrderChange:
    """Cancel an order. A paid one can be refunded afterwards.

    The e-mail shows `reason` to the customer. The event only tells whether there is one, because it may hold
    a name. Only the event contains `cause`: codes for other services.
    """
    order = seen.order
    order.status = next_status(order=order, action=Action.CANCEL)
    was_paid = order.paid_at is not None
    change = _changed(seen)
    details = {"wasPaid": was_paid, "hasReason": bool(reason), **(cause or {})}
    change.record("order.cancelled", details=details, reason=reason, was_paid=was_paid)
    return change


def refund(seen: Seen, *, amount: int | None = None, currency: str | None = None) -> OrderChange:
    """Refund `amount` minor units, or the whole balance.

    Raise `RefundExceedsBalance` if less is left, and `OtherMoney` if `currency` is given and is not the
    order's.
    """
    order = seen.order
    check(order=order, action=Action.REFUND)
    if currency not in (None, order.currency):
        raise OtherMoney(
            f"The refund is in {currency}, the order in {order.currency}: check what the customer got back"
        )
    balance = order.refundable_amount
    refunded = balance if amount is None else amount
    if not 0 < refunded <= balance:
        raise RefundExceedsBalance(amount=amount, left=balance)
    left = balance - refunded
    order.status = next_status(order=order, action=Action.REFUND, left=left)
    order.refunded_amount += refunded
    change = _changed(seen)
    event = "order.part_refunded" if left else "order.refunded"
    change.record(event, details={"amount": refunded}, amount=refunded)
    return change


def adopt(
    seen: Seen | None,
    *,
    now: dt.datetime,
    reported: Order,
    event: str,
    at: dt.datetime,
    is_history: bool,
    **change: Any,
) -> OrderChange:
    """Take over the state that another system reports of its order, and send the e-mail of its event.

    `reported` is the order after the change of `event`, which happened `at`. `seen` is None before the first
    event. An event that arrives after a later one (overtaken) changes only the order's times, but still sends
    its e-mail, which shows the order as reported and goes to the newest address. History sends none. Every
    event updates the order's row, so that of two with one sequence at the same moment the second finds the
    first one's e-mail. The e-mail's templates get `change`.
    """
    if seen is None:
        order, overtaken = reported, False
    else:
        order, overtaken = seen.order, reported.version <= seen.order.version
        if order.email == ERASED_ADDRESS:  # an erased person stays erased
            for name, erased in ERASED_VALUES.items():
                setattr(reported, name, erased)
            reported.items = erase_items(reported.items)
        for name in () if overtaken else STATE:
            setattr(order, name, getattr(reported, name))
        # The earliest time counts, because queries search for e-mails and events from `created_at` on.
        order.created_at = min(order.created_at, reported.created_at)
    if (column := TIMES.get(event)) and not is_history:  # the event of history has the time of the import
        setattr(order, column, min(filter(None, [getattr(order, column), at])))
    order.updated_at = now
    row = None if seen is None else seen.row
    adopted = OrderChange(order=order, now=now, row=row, columns=ADOPTED_COLUMNS)
    if not is_history:
        adopted.add_email(event, shown=reported, change={"at": at, **change}, may_exist=overtaken)
    source, sequence = order.source, reported.version
    adopted.on_commit = lambda: log.info(
        "external order told of",
        order_id=str(order.id),
        source=source,
        change=event,
        sequence=sequence,
        overtaken=overtaken,
    )
    return adopted
