"""One order's timeline: every change, e-mail, attempt, delivery, event and act of a person, by time.

A timeline reads live rows and detached partitions.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from django.contrib.admin.models import LogEntry
from django.db.models import Q

from events.models import DomainEvent
from notifications.models import EmailNotification
from notifications.rendering import format_amount
from notifications.states.transitions import DUE_STATES, Status
from orders.events import EVENTS
from orders.models import Order, OrderRefund
from retention.owner_rows import owner_rows
from retention.partitioned import PartitionedModel
from runtime.personal_data import without_addresses

Kind = Literal["change", "event", "email", "attempt", "delivery", "person", "plan"]
Row = Mapping[str, Any]

CHANGES = {event.topic: event.name for event in EVENTS.values()}
#: A logged act and an e-mail's `resent_at` less than this apart are one act: one transaction writes both.
SAME_ACT = dt.timedelta(seconds=5)
VERDICTS = {
    "permanent": "refused for good",
    "transient": "not taken",
    "unreachable": "no connection",
    "ambiguous": "the answer was lost, so the provider may have accepted it",
    "throttled": "too fast for the provider",
    "misconfigured": "the provider refuses our account",
    "sender_refused": "the provider refuses the sender",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEntry:
    """One thing that happened, or will happen (`plan`). `by` is the login of the person who did it."""

    at: dt.datetime
    kind: Kind
    what: str  # a word for programs: paid, created, failed, sent, …
    text: str
    notification_id: uuid.UUID | None = None
    event_id: uuid.UUID | None = None
    provider: str = ""
    by: str = ""


def read_timeline(*, order: Order, is_for_shop: bool = False) -> list[TimelineEntry]:
    """Return all entries of an order, oldest first, with planned entries last.

    For a shop, leave out what operators typed, who they are, and to whom else they sent a copy.

    It runs at most eight statements, however long the timeline is.
    """
    emails = _rows(EmailNotification, order, without=("body", "body_text"))
    # A shop chooses the ids of its orders, and another aggregate may have the same id.
    events = [event for event in _rows(DomainEvent, order, without=()) if event["aggregate_type"] == "order"]
    acts = _acts(order, emails)
    entries = [
        *_of_order(order, events),
        *_of_warnings(order),
        *_of_unexpected_payment(order),
        *(entry for event in events for entry in _of_event(event)),
        *(
            entry
            for email in emails
            for entry in _of_email(email, acts, is_secret=is_for_shop and _is_elsewhere(email, order))
        ),
        *(_of_act(act, order, is_for_shop=is_for_shop) for act in acts),
    ]
    return sorted(entries, key=lambda entry: (entry.kind == "plan", entry.at))


def _rows(model: PartitionedModel, order: Order, without: tuple[str, ...]) -> list[Row]:
    return list(owner_rows(model=model, owner_id=order.id, since=order.created_at, without=without))


def _acts(order: Order, emails: Iterable[Row]) -> list[LogEntry]:
    of_order = Q(content_type__app_label="orders", object_id=str(order.id))
    of_emails = Q(
        content_type__app_label="notifications", object_id__in=[str(email["id"]) for email in emails]
    )
    entries = LogEntry.objects.filter(of_order | of_emails).select_related("user")
    return list(entries.order_by("action_time"))


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
    """Yield the payment that must be returned, and those that refund events returned."""
    if order.unexpected_payment_event_id is None:
        return

    def entry(at: dt.datetime, what: str, amount: int | None, text: str) -> TimelineEntry:
        money = "in another currency"
        if amount is not None:
            money = f"of {format_amount(amount=amount, currency=order.currency, locale='en')}"
        return TimelineEntry(at=at, kind="change", what=what, text=f"Payment {money} {text}")

    if at := order.unexpected_payment_at:
        text = f"that the order cannot take: return it (event {order.unexpected_payment_event_id})"
        yield entry(at, "payment_unexpected", order.unexpected_payment_amount, text)
    for refund in OrderRefund.objects.filter(order_id=order.id, is_unexpected_payment=True):
        yield entry(refund.at, "payment_returned", refund.amount, "returned that the order could not take")


def _of_event(event: Row) -> Iterator[TimelineEntry]:
    id, topic = uuid.UUID(str(event["id"])), str(event["event_type"])
    payload = event["payload"]
    name = CHANGES.get(topic)
    at = _time(event["created_at"])
    assert at is not None

    def entry(at: dt.datetime, kind: Kind, what: str, text: str) -> TimelineEntry:
        return TimelineEntry(at=at, kind=kind, what=what, text=text, event_id=id)

    if name:
        yield entry(at, "change", name, _change(name, payload, event))
    if published := _time(event["published_at"]):
        yield entry(published, "event", "published", f"Event {topic} published")
    elif dead := _time(event.get("dead_lettered_at")):
        text = f"Event {topic} could not be published: {event.get('last_error') or 'no reason kept'}"
        yield entry(dead, "event", "dead_lettered", text)


def _change(name: str, payload: Mapping[str, Any], event: Row) -> str:
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


def _of_email(email: Row, acts: Iterable[LogEntry], *, is_secret: bool) -> Iterator[TimelineEntry]:
    """Yield the entries of an e-mail. Leave out its address if it `is_secret`."""
    id, name = uuid.UUID(str(email["id"])), str(email["event_type"])
    if email.get("shop_copy_of"):
        name += " (shop copy)"

    def entry(at: Any, kind: Kind, what: str, text: str, provider: str = "") -> Iterator[TimelineEntry]:
        if (time := _time(at)) is not None:
            said = without_addresses(text) if is_secret else text
            yield TimelineEntry(
                at=time, kind=kind, what=what, text=said, notification_id=id, provider=provider
            )

    of = f", a copy of {email['resend_of']}" if email.get("resend_of") else ""
    to = "another address" if is_secret else email["recipient_email"]
    yield from entry(email["created_at"], "email", "created", f"E-mail {name} for {to} saved{of}")
    for error in email["errors"]:
        verdict = str(error.get("outcome", ""))
        provider = str(error.get("provider", ""))
        text = (
            f"{name}: {provider or 'no provider'}: {VERDICTS.get(verdict, verdict)}: {error.get('text', '')}"
        )
        yield from entry(error.get("at"), "attempt", verdict, text, provider)
    resent = _time(email.get("resent_at"))
    act_times = {act.action_time for act in acts if act.object_id == str(id)}
    if resent and not any(abs(resent - time) < SAME_ACT for time in act_times):
        yield from entry(resent, "person", "resent", f"{name}: resend requested")
    by = str(email["provider"] or "")
    yield from entry(email["sent_at"], "delivery", "sent", f"{name}: accepted by {by or 'the provider'}", by)
    # Providers report whole seconds. Their time may be before the e-mail was sent or even saved.
    earliest = _time(email["sent_at"]) or _time(email["created_at"])
    for what, words in (("delivered", "delivered"), ("bounced", "bounced"), ("complained", "marked as spam")):
        if told := _time(email.get(f"{what}_at")):
            at = max(told, earliest) if earliest else told
            yield from entry(at, "delivery", what, f"{name}: {words}", by)
    status, last = str(email["status"]), email["last_error"] or "no reason kept"
    if status in DUE_STATES:
        yield from entry(email["next_attempt_at"], "plan", "next_attempt", f"{name}: next attempt")
    elif status in (Status.DEAD_LETTERED, Status.SUPPRESSED, Status.DISCARDED):
        words = status.replace("_", " ")
        yield from entry(email["updated_at"], "email", status, f"{name}: {words}: {last}")


def _of_act(act: LogEntry, order: Order, *, is_for_shop: bool) -> TimelineEntry:
    is_email = act.object_id != str(order.id)
    # A message is "Our own words. What was typed". orders.privacy.typed_texts erases by this, too.
    said = act.get_change_message() or "changed"
    return TimelineEntry(
        at=act.action_time,
        kind="person",
        what="act",
        text=said.partition(". ")[0] if is_for_shop else said,
        notification_id=uuid.UUID(act.object_id) if is_email and act.object_id else None,
        by=act.user.get_username() if act.user_id and act.user and not is_for_shop else "",
    )


def _time(value: Any) -> dt.datetime | None:
    """Read a time: a datetime, or ISO 8601."""
    if isinstance(value, dt.datetime):
        return value
    return dt.datetime.fromisoformat(str(value)) if value else None
