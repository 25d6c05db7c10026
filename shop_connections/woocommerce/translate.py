"""Which events an order of WooCommerce still owes, by its body and the order as it is here.

WooCommerce posts an order after every save, without a word about what changed. So its status, refunds and
parcels are compared with the order here. What they have and it has not is told, each change by an event of
its own; whatever else differs is corrected by an event without an e-mail. A post that changed nothing has
no events, and neither has one that arrives after a later one.

A post has the whole order, so a lost one is made up for by the next. The ids of events come from what
happened: the order, and which of its refunds or parcels it was. What can happen to an order again, such as
a cancellation, also has the version of the order that it changes.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Mapping
from typing import Any

from django.conf import settings

from events.consuming.envelope import Rejected
from orders.breakdown import fold_items
from orders.emails import default_locale
from orders.models import Order
from orders.parcels import SHIPPABLE
from runtime.personal_data import ERASED_ADDRESS
from shop_connections.translation import MOST_CHANGES, Stored, StoredShipment, Translation
from shop_connections.woocommerce.order import ShopOrder, ShopRefund, read_order
from shop_connections.woocommerce.parcels import Parcel
from web.api.fields import camel

S = Order.Status
#: Our status for each of WooCommerce's own; "" leaves the order unchanged. A connection may override it.
STATUSES: Mapping[str, str] = {
    "pending": S.PENDING,
    "failed": S.PENDING,
    "on-hold": S.PENDING,
    "processing": S.PAID,
    "ready-for-pickup": S.PAID,
    "completed": S.COMPLETED,
    "cancelled": S.CANCELLED,
    "refunded": S.REFUNDED,
    "trash": "",
    "checkout-draft": "",
    "auto-draft": "",
    "draft": "",
    "new": "",
}
#: The customer is still at the checkout. WooCommerce sends no e-mail, and cancels such orders by the hour.
AT_CHECKOUT = frozenset({"pending", "failed"})
#: Ways to pay after the order, whose orders are never at the checkout.
AFTERWARDS = frozenset({"bacs", "cheque", "cod"})
#: How far an order is. Within one second of the shop's clock it only goes on.
_PROGRESS = (S.PENDING, S.PAID, S.CONFIRMED, S.COMPLETED, S.PART_REFUNDED, S.CANCELLED, S.REFUNDED)
#: The statuses after which nothing of an earlier one is told.
_ENDED = frozenset({S.CANCELLED, S.REFUNDED})
#: An order that is completed as soon as it is paid, such as a download, sends no e-mail about the payment.
_AT_ONCE = dt.timedelta(seconds=2)
#: An older change is history, because the inbox may have forgotten that it told it.
_OLDEST = dt.timedelta(days=settings.PROCESSED_EVENT_DAYS - 2)
_TOPIC = "order.order.{}.v1"
#: The event with which an order takes over a status.
_NAMES: Mapping[str, str] = {S.PENDING: "placed"}


def translate(
    body: bytes,
    *,
    stored: Stored | None,
    source: str,
    mapping: Mapping[str, str],
    received_at: dt.datetime,
    most: int = MOST_CHANGES,
) -> Translation:
    """Return the events that make the order here what the body says. Raise `Rejected`.

    If they are more than `most`, return one without an e-mail, after which the order is what the body says.
    Its parcels follow with the next translation.

    `stored` is the order as it is here, under its lock. `mapping` has the meanings of the shop's statuses, if
    they are not those of `STATUSES`: one of ours, or "" to leave the order's.
    """
    order = read_order(body, locale=default_locale(source=source))
    if order is None:
        raise Rejected("it is about no order")
    if _is_late(order, stored) or (goal := _find_goal(order, stored, mapping)) is None:
        return Translation(order.id, [], order.modified_at, order.number)
    story = _Story(order, stored, source=source, received_at=received_at, most=most)
    story.tell_all(goal)
    doubts = list(order.doubts) if stored is None or stored.total_amount else []  # told once
    if story.count > most:
        doubts += [f"changes: The post has {story.count:,} of them. They are stored as one, without e-mails."]
        story = _Story(order, stored, source=source, received_at=received_at, most=1)
        story.correct(goal)
    return Translation(order.id, story.events, order.modified_at, order.number, doubts)


class _Goal:
    """The state that the order must get. `base` is its status without its refunds."""

    def __init__(self, order: ShopOrder, base: str) -> None:
        refunded = min(sum(refund.amount for refund in order.refunds), order.total)
        self.base, self.status, self.refunded = base, base, refunded
        if base == S.REFUNDED:
            self.refunded = order.total
        elif base != S.CANCELLED and refunded:
            self.status = S.REFUNDED if refunded == order.total else S.PART_REFUNDED


def _is_late(order: ShopOrder, stored: Stored | None) -> bool:
    return stored is not None and stored.modified_at is not None and order.modified_at < stored.modified_at


def _find_goal(order: ShopOrder, stored: Stored | None, mapping: Mapping[str, str]) -> _Goal | None:
    """Return what the order must become, or None if nothing of it is news."""
    chosen = mapping.get(order.status, mapping.get(f"wc-{order.status}"))
    base = STATUSES.get(order.status) if chosen is None else chosen
    if base is None:
        raise Rejected(
            f"its status {order.status!r} is not one of WooCommerce's: say in the connection what it means"
        )
    if stored is None and chosen is None and order.status in AT_CHECKOUT:
        base = ""
    if base == "":
        base = _base_of(stored) if stored is not None else ""
    if base == "":
        return None
    is_paid = order.paid_at is not None
    if base == S.PART_REFUNDED:
        base = S.PAID
    if order.status == "on-hold" and base == S.PENDING and is_paid:
        base = S.PAID
    if base == S.PAID and not is_paid and not (stored is not None and stored.is_paid):
        base = S.CONFIRMED  # cash on delivery: the shop gets the order ready before it is paid
    if base == S.CANCELLED and stored is None and not is_paid and order.payment_method not in AFTERWARDS:
        return None  # an abandoned checkout
    goal = _Goal(order, base)
    if stored is not None and stored.modified_at == order.modified_at:
        has_gone_back = _PROGRESS.index(S(goal.status)) < _PROGRESS.index(S(stored.status))
        if has_gone_back or goal.refunded < stored.refunded_amount:
            return None
    return goal


def _base_of(stored: Stored) -> str:
    if stored.status == S.PART_REFUNDED:
        return S.COMPLETED if stored.is_completed else S.PAID
    return stored.status


class _Story:
    """Tells what happened to an order since it became what it is here, as events in their order."""

    def __init__(
        self, order: ShopOrder, stored: Stored | None, *, source: str, received_at: dt.datetime, most: int
    ) -> None:
        self.order, self.stored, self.source, self.received_at = order, stored, source, received_at
        self.status = stored.status if stored else ""
        self.refunded = min(stored.refunded_amount, order.total) if stored else 0
        self.version = stored.version if stored else 0
        self.items = [{camel(name): value for name, value in item.items()} for item in order.items]
        #: Only the first `most` are made, because each has all items of the order.
        self.events: list[dict[str, Any]] = []
        self.count, self.most = 0, most
        self.told_parcels: set[str] = set()
        # When an undated change was made: now, if a post told the order before. If none did, also if it was
        # imported, the change may be as old as the order's newest date. Otherwise a shop that saves its old
        # orders would mail everybody.
        self.is_first = stored is None or stored.modified_at is None
        dates = [order.created_at, order.paid_at, order.completed_at]
        self.changed_at = max(filter(None, dates)) if self.is_first else order.modified_at

    def tell_all(self, goal: _Goal) -> None:
        """Tell every change in an order in which they can have happened, and correct what is left."""
        if self.stored is not None and self.stored.currency != self.order.currency:
            self.correct(goal)  # an e-mail would show sums of two currencies
            return
        has_ended = self.stored is not None and goal.status == self.stored.status and self.status in _ENDED
        if not has_ended:
            self._tell_beginning(goal)
        self._tell_parcels()
        if not has_ended and self._owes_completion(goal):
            has_part = 0 < self.refunded < self.order.total
            tracked = {parcel.tracking_url for parcel in self.order.parcels if parcel.tracking_url}
            link = {"trackingUrl": tracked.pop()} if len(tracked) == 1 else {}
            at = self.order.completed_at or self.changed_at
            self._tell("completed", S.PART_REFUNDED if has_part else S.COMPLETED, at=at, details=link)
            self._tell_parcels()
        if goal.base == S.CANCELLED and self.status != S.CANCELLED:
            self._tell("cancelled", S.CANCELLED, is_repeatable=True, details={"wasPaid": self._was_paid()})
        self._tell_refunds(goal)
        if (self.status, self.refunded) != (goal.status, goal.refunded) or (
            not self.count and self._has_other_details()
        ):
            self.correct(goal)
        self._tell_parcels()

    def _tell_beginning(self, goal: _Goal) -> None:
        """Tell of the order's first e-mails: that it is here, paid, or confirmed without a payment."""
        order, stored = self.order, self.stored
        if stored is None and goal.status == S.PENDING:
            self._tell("placed", S.PENDING)
        told = (S.PAID, S.COMPLETED, S.PART_REFUNDED, S.REFUNDED)
        is_told = stored is not None and (stored.is_paid or stored.status in told)
        if order.paid_at is not None and not is_told and goal.base != S.PENDING and not self.refunded:
            done_at = order.completed_at if self._owes_completion(goal) else None
            if done_at is None or done_at - order.paid_at > _AT_ONCE:
                self._tell("paid", S.PAID, at=order.paid_at)
        if goal.status == S.CONFIRMED and self.status in ("", S.PENDING, S.PAID) and not self.refunded:
            self._tell("confirmed", S.CONFIRMED, is_repeatable=True)

    def _owes_completion(self, goal: _Goal) -> bool:
        stored, order = self.stored, self.order
        if stored is not None and (stored.is_completed or stored.status == S.COMPLETED):
            return False
        is_past = goal.base in _ENDED and order.completed_at is not None
        can_be = self.refunded < order.total or not self.refunded
        return (goal.base == S.COMPLETED or is_past) and can_be

    def _tell_parcels(self) -> None:
        """Tell of the parcels that left, or were delivered, while the order's status allows it."""
        is_part = 0 < self.refunded < self.order.total
        if self.status not in SHIPPABLE or is_part != (self.status == S.PART_REFUNDED):
            return
        for parcel in self.order.parcels:
            reference = self._reference_of(parcel)
            stored = self.stored.shipments.get(reference) if self.stored else None
            if reference in self.told_parcels:
                continue
            if stored is None:
                left_at = parcel.shipped_at if self.is_first else None
                self._tell_parcel(parcel, "shipped", at=max(self.changed_at, left_at or self.changed_at))
            elif parcel.is_delivered and not stored.is_delivered:
                self._tell_parcel(parcel, "delivered", at=self.changed_at)
            elif not self._is_erased() and _is_corrected(parcel, stored):
                self._tell_parcel(parcel, "corrected", at=None)

    def _tell_parcel(self, parcel: Parcel, kind: str, *, at: dt.datetime | None) -> None:
        self.told_parcels.add(self._reference_of(parcel))
        shipped_at = min(parcel.shipped_at or at or self.changed_at, self.order.modified_at)
        shipment: dict[str, Any] = {
            "reference": self._reference_of(parcel),
            "carrier": parcel.carrier,
            "trackingNumber": parcel.tracking_number,
            "trackingUrl": parcel.tracking_url,
            "shippedAt": shipped_at.isoformat(),
        }
        if parcel.lines:
            shipment["lines"] = [{"item": item, "quantity": quantity} for item, quantity in parcel.lines]
        if parcel.is_delivered:
            shipment["deliveredAt"] = (at or self.changed_at).isoformat()
        details = {"shipment": {name: value for name, value in shipment.items() if value != ""}}
        id = [kind, parcel.tracking_number, *([self.version] if kind == "corrected" else [])]
        if at is None or self.received_at - at > _OLDEST:  # it must be here, or the next post would tell it
            self._add("shipped", self.status, at=None, id=id, details=details)
        else:
            self._tell("shipped", self.status, at=at, id=id, details=details)

    def _reference_of(self, parcel: Parcel) -> str:
        """Return our name of a parcel. It stays after an erasure, which its number must not."""
        return _event_id(self.source, self.order.id, ["parcel", parcel.tracking_number]).hex[:12]

    def _tell_refunds(self, goal: _Goal) -> None:
        """Tell of the refunds that make up the difference to the refunded amount here, oldest first.

        If less is refunded than here, some were deleted, without a post until WooCommerce 11.2. One that
        replaced them may be new, so tell of all: those that were told are repeats for the inbox.
        """
        refunds = list(self.order.refunds)
        rest = goal.refunded - sum(refund.amount for refund in refunds)
        if rest > 0 or (not self.order.total and goal.base == S.REFUNDED != self.status):
            # A person chose the status, without a refund.
            refunds.append(ShopRefund(f"rest {self.version}", rest))
        left = goal.refunded - self.refunded
        has_lost_some, new = left < 0, list[ShopRefund]()
        for refund in reversed(refunds):
            if left > 0 or has_lost_some or not refund.amount:
                new.append(refund)
            left -= refund.amount
        refunded = max(0, goal.refunded - sum(refund.amount for refund in new))
        for refund in reversed(new):
            refunded = min(refunded + refund.amount, goal.refunded)
            is_all = refunded == self.order.total
            status = S.CANCELLED if goal.status == S.CANCELLED else S.REFUNDED if is_all else S.PART_REFUNDED
            self._tell(
                "refunded" if is_all else "part_refunded",
                status,
                refunded=refunded,
                id=["refund", refund.id],
                details={"amount": min(refund.amount, refunded)},
            )
        if has_lost_some:
            self.correct(goal)  # for the case that all are repeats

    def _tell(
        self,
        name: str,
        status: str,
        *,
        at: dt.datetime | None = None,
        refunded: int | None = None,
        id: list[Any] | None = None,
        is_repeatable: bool = False,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Add an event that may send an e-mail, unless it is so old that it is history."""
        at = min(at or self.changed_at, self.received_at)
        if self.received_at - at > _OLDEST:
            return
        id = id or ([name, self.version] if is_repeatable else [name])
        self._add(name, status, at=at, refunded=refunded, id=id, details=details)

    def correct(self, goal: _Goal) -> None:
        """Add an event without an e-mail, after which the order is what the shop says."""
        details: dict[str, Any] = {}
        if goal.status in (S.PART_REFUNDED, S.REFUNDED):
            details["amount"] = 0
        elif goal.status == S.CANCELLED:
            details["wasPaid"] = self._was_paid()
        self._add(
            _NAMES.get(goal.status, goal.status),
            goal.status,
            at=None,
            refunded=goal.refunded,
            id=["correction", self.version],
            details=details,
        )

    def _add(
        self,
        name: str,
        status: str,
        *,
        at: dt.datetime | None,
        id: list[Any],
        refunded: int | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Add an event of a change `at` a time, or one without an e-mail."""
        order = self.order
        self.status, self.refunded = status, self.refunded if refunded is None else refunded
        self.version += 1
        self.count += 1
        if self.count > self.most:
            return
        data: dict[str, Any] = {
            "orderId": order.id,
            "userId": order.user_id,
            "reference": order.number,
            "email": order.email,
            "status": str(status),
            "totalAmount": order.total,
            "refundedAmount": self.refunded,
            "currency": order.currency,
            "items": self.items,
            "charges": list(order.charges),
            **{camel(name): value for name, value in order.details.items()},
            "placedAt": order.created_at.isoformat(),
            **({"name": order.name} if order.name else {}),
            **(details or {}),
        }
        if at is None:
            data["notify"] = False
        self.events.append(
            {
                "eventId": str(_event_id(self.source, order.id, id)),
                "eventType": _TOPIC.format(name),
                "version": 1,
                "source": self.source,
                "timestamp": (at or self.received_at).isoformat(),
                "metadata": {"sequence": self.version},
                "data": data,
            }
        )

    def _was_paid(self) -> bool:
        return self.order.paid_at is not None or (self.stored is not None and self.stored.is_paid)

    def _is_erased(self) -> bool:
        return self.stored is not None and self.stored.email == ERASED_ADDRESS

    def _has_other_details(self) -> bool:
        """Return whether somebody edited the order in the shop.

        An address that no provider takes says nothing: a person here may have given the order another one.
        """
        order, stored = self.order, self.stored
        if stored is None or stored.total_amount != order.total or stored.reference != order.number:
            return True
        if self._is_erased():
            return False
        has_other_address = bool(order.email) and order.email != stored.email
        here = (stored.name, list(stored.items), list(stored.charges), stored.details)
        there = (order.name, fold_items(order.items), list(order.charges), order.details)
        return has_other_address or here != there


def _is_corrected(parcel: Parcel, stored: StoredShipment) -> bool:
    """Return whether the shop corrected the carrier or the link of a parcel, rather than took it away."""
    new = (parcel.carrier or stored.carrier, parcel.tracking_url or stored.tracking_url)
    return new != (stored.carrier, stored.tracking_url)


def _event_id(source: str, order_id: str, what: list[Any]) -> uuid.UUID:
    name = json.dumps(["woocommerce", source, order_id, *what])
    return uuid.uuid5(uuid.NAMESPACE_URL, f"urn:orderpost:connection:{name}")
