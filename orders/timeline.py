"""One order's timeline: every change, e-mail, attempt, delivery, event and act of a person, by time.

A timeline reads live rows and detached partitions.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from events.models import DomainEvent
from notifications.changes.trail import Kind, Row, TimelineEntry, act_entry, email_entries, read_time
from notifications.content.rendering import format_amount
from notifications.models import EmailNotification
from orders.events import EVENTS
from orders.models import Order, OrderRefund, UnexpectedPayment
from orders.parcels import Line, event_details, read_shipments
from retention.owner_rows import owner_rows
from retention.partitioned import PartitionedModel
from runtime.binding import UNBOUND, Binding
from runtime.models import AuditRow

#: A line of the timeline names at most so many items of a parcel.
_SHOWN_LINES = 5
CHANGES = {event.topic: event.name for event in EVENTS.values()}


def read_timeline(
    *, order: Order, shops: Binding = UNBOUND, is_for_shop: bool = False
) -> list[TimelineEntry]:
    """Return all entries of an order, oldest first, with planned entries last.

    The reader is bound to `shops`, and sees no e-mails or acts of others. For a shop, leave out what
    operators typed, who they are, and to whom else they sent a copy.

    It runs at most nine statements, however long the timeline is.
    """
    emails = _rows(EmailNotification, order, without=("body", "body_text"))
    # A table of before the column `source` has only the order's own.
    emails = [email for email in emails if shops.has(email.get("source", order.source))]
    # A shop chooses the ids of its orders, and another aggregate may have the same id.
    events = [event for event in _rows(DomainEvent, order, without=()) if event["aggregate_type"] == "order"]
    acts = list(shops.only(AuditRow.objects.filter(order_id=order.id)).order_by("id"))
    entries = [
        *_of_order(order, events),
        *_of_warnings(order),
        *_of_unexpected_payment(order),
        *_of_shipments(order, events),
        *(entry for event in events for entry in _of_event(event, order)),
        *(
            entry
            for email in emails
            for entry in email_entries(email, acts, is_secret=is_for_shop and _is_elsewhere(email, order))
        ),
        *(_of_act(act, is_for_shop=is_for_shop) for act in acts),
    ]
    return sorted(entries, key=lambda entry: (entry.kind == "plan", entry.at))


def _rows(model: PartitionedModel, order: Order, without: tuple[str, ...]) -> list[Row]:
    return list(owner_rows(model=model, owner_id=order.id, since=order.created_at, without=without))


def _of_order(order: Order, events: Iterable[Row]) -> Iterator[TimelineEntry]:
    """Yield the order's own times for changes whose events are no longer stored."""
    told = {CHANGES.get(str(event["event_type"])) for event in events}
    total = format_amount(amount=order.total_amount, currency=order.currency, locale="en")
    for name, at, text in (
        ("order.placed", order.created_at, f"Order placed: {total}"),
        ("order.paid", order.paid_at, "Order paid"),
        ("order.completed", order.completed_at, "Order completed"),
    ):
        if at and name not in told:
            yield TimelineEntry(at=at, kind="change", what=name, text=text)
    ended = f"order.{order.status}"
    if ended in ("order.cancelled", "order.part_refunded", "order.refunded") and ended not in told:
        words = order.status.replace("_", "-")
        yield TimelineEntry(
            at=order.updated_at, kind="change", what=ended, text=f"Order {words} (its last change)"
        )
    if order.stock_reserved_at and "order.confirmed" not in told:
        yield TimelineEntry(
            at=order.stock_reserved_at, kind="change", what="stock_reserved", text="Stock reserved"
        )


def _of_warnings(order: Order) -> Iterator[TimelineEntry]:
    for line in order.warnings:
        at = dt.datetime.fromisoformat(line["at"])
        yield TimelineEntry(at=at, kind="event", what="warning", text=line["text"])


def _of_unexpected_payment(order: Order) -> Iterator[TimelineEntry]:
    """Yield the payments that the order could not take, and the refunds that returned some of them."""
    for payment in UnexpectedPayment.objects.filter(order_id=order.id).order_by("at", "id"):
        text = f"Payment {say_money(order, payment.amount)} that the order cannot take"
        text += f" (event {payment.id})" if payment.returned_at else f": return it (event {payment.id})"
        yield TimelineEntry(at=payment.at, kind="change", what="payment_unexpected", text=text)
    for refund in OrderRefund.objects.filter(order_id=order.id, is_unexpected_payment=True):
        text = f"Payment {say_money(order, refund.amount)} returned that the order could not take"
        yield TimelineEntry(at=refund.at, kind="change", what="payment_returned", text=text)


def say_money(order: Order, amount: int | None) -> str:
    """Say how much a payment was. None is an amount in another currency than the order's."""
    if amount is None:
        return "in another currency"
    return f"of {format_amount(amount=amount, currency=order.currency, locale='en')}"


def _of_shipments(order: Order, events: Iterable[Row]) -> Iterator[TimelineEntry]:
    """Yield the times of parcels for changes whose events are not stored, such as those of other systems."""
    stored = {(CHANGES.get(str(event["event_type"])), event["payload"].get("shipmentId")) for event in events}
    for shipment in read_shipments(order):
        for name, at in (
            ("order.shipped", shipment.shipped_at),
            ("order.delivered", shipment.delivered_at),
            ("order.shipment_returned", shipment.returned_at),
        ):
            if at and (name, str(shipment.id)) not in stored:
                text = _parcel(name, event_details(order, shipment), order)
                text += " (not told yet: it waits for the payment)" if shipment.untold_since else ""
                yield TimelineEntry(at=at, kind="change", what=name, text=text)


#: The word for each change of a parcel.
_PARCELS = {
    "order.shipped": "left",
    "order.shipment_updated": "corrected",
    "order.delivered": "delivered",
    "order.shipment_returned": "came back",
}


def _parcel(name: str, details: Mapping[str, Any], order: Order) -> str:
    """Say what happened to a parcel, which `event_details` describes."""
    words = f"Parcel {details.get('reference', '')}".rstrip() + f" {_PARCELS[name]}"
    if name in ("order.shipped", "order.shipment_updated"):
        tracking = " ".join(filter(None, (details.get("carrier"), details.get("trackingNumber"))))
        words += f" with {tracking}" if tracking else ""
    items = name_lines(order, details["lines"])
    return f"{words}: {items}" if items else words


def name_lines(order: Order, lines: Sequence[Line]) -> str:
    """Return the first lines of a parcel in words."""
    names = dict(enumerate(item["name"] for item in order.items))
    shown = [f"{line['quantity']} × {names.get(line['item'], '?')}" for line in lines[:_SHOWN_LINES]]
    more = [f"{len(lines) - _SHOWN_LINES} more"] if len(lines) > _SHOWN_LINES else []
    return ", ".join([*shown, *more])


def _of_event(event: Row, order: Order) -> Iterator[TimelineEntry]:
    id, topic = uuid.UUID(str(event["id"])), str(event["event_type"])
    payload = event["payload"]
    name = CHANGES.get(topic)
    at = read_time(event["created_at"])
    assert at is not None

    def entry(at: dt.datetime, kind: Kind, what: str, text: str) -> TimelineEntry:
        return TimelineEntry(at=at, kind=kind, what=what, text=text, event_id=id)

    if name:
        yield entry(at, "change", name, _change(name, payload, event, order))
    if published := read_time(event["published_at"]):
        yield entry(published, "event", "published", f"Event {topic} published")
    elif dead := read_time(event.get("dead_lettered_at")):
        text = f"Event {topic} could not be published: {event.get('last_error') or 'no reason kept'}"
        yield entry(dead, "event", "dead_lettered", text)


def _change(name: str, payload: Mapping[str, Any], event: Row, order: Order) -> str:
    if name in _PARCELS:
        return f"{_parcel(name, payload, order)} (version {event['sequence']})"
    if name == "order.payment_failed":
        words = "Payment failed"
    else:
        words = f"Order {name.removeprefix('order.').replace('_', '-')}"
    amount = payload.get("amount") if "refund" in name else payload.get("totalAmount")
    if isinstance(amount, int) and name in ("order.placed", "order.refunded", "order.part_refunded"):
        words += f": {format_amount(amount=amount, currency=str(payload.get('currency')), locale='en')}"
    if code := payload.get("reasonCode") or payload.get("reason"):
        words += f": {code}"
    return f"{words} (version {event['sequence']})"


def _is_elsewhere(email: Row, order: Order) -> bool:
    """Return whether an e-mail is a copy to an address that is not the order's."""
    return bool(email.get("resend_of")) and str(email["recipient_email"]).lower() != order.email.lower()


def _of_act(act: AuditRow, *, is_for_shop: bool) -> TimelineEntry:
    is_email = act.subject_type == EmailNotification._meta.label_lower
    id = uuid.UUID(act.subject_id) if is_email else None
    return act_entry(act, notification_id=id, is_for_shop=is_for_shop)
