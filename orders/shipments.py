"""Every change of an order's shipments: sent, corrected, delivered, returned.

Each function locks the order and decides, as those of orders.services do. A change of a shipment is a change
of its order: it gets the order's next version, so its event and its e-mail have their place among the
others. The order's status stays; `fulfilment` says how much has left.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping, Sequence

from orders.models import TRACKING, Order, Shipment
from orders.parcels import (
    ENDS,
    SHIPPABLE,
    Line,
    compute_fulfilment,
    count_left,
    list_lines,
    read_shipments,
    shown,
)
from orders.services import OrderChange, lock_order, lock_shipment
from orders.transitions import ChangeRefused, ExternallyOwned, InvalidTransition
from runtime.personal_data import ERASED_ADDRESS
from web.api.fields import camel

#: An own order has at most so many shipments.
MOST_SHIPMENTS = 100
#: So much ahead of the database's clock a time counts as now: clocks differ.
CLOCKS_APART = dt.timedelta(minutes=1)
#: What a line with the index of no item is told as.
UNKNOWN_ITEM = "A line has an item that the order does not have."
#: No parcel is so much older than its order.
OLDEST = dt.timedelta(days=365)


class ImpossibleTime(ValueError):
    """A parcel cannot have left at this time. Unlike a refused change, its request must be corrected."""


class ShipmentNotFound(LookupError):
    """The order has no such shipment."""


class MoreThanOrdered(ChangeRefused):
    """The lines exceed what is left to ship. `left` has the quantity that is left of each item."""

    def __init__(self, *, left: Sequence[int]) -> None:
        self.left = [{"item": item, "quantity": quantity} for item, quantity in enumerate(left)]
        super().__init__(
            "The lines have more of an item than is left to ship, or an item that the order does not have."
            if any(left)
            else "Nothing is left to ship: every item of the order has left in a parcel."
        )


class TooManyShipments(ChangeRefused):
    """The order has as many shipments as it can have."""

    def __init__(self) -> None:
        super().__init__(f"The order has {MOST_SHIPMENTS} shipments, and can have no more.")


def ship(
    *,
    order_id: uuid.UUID,
    lines: Sequence[Line] | None = None,
    reference: str | None = None,
    shipped_at: dt.datetime | None = None,
    is_fact: bool = False,
    event_at: dt.datetime | None = None,
    **tracking: str,
) -> tuple[OrderChange, Shipment]:
    """Send a parcel with these lines, or with all that is left. `tracking` has values of `TRACKING`.

    A parcel whose `reference` was told before only gets the tracking that it lacks. Raise
    `MoreThanOrdered`, `TooManyShipments` or `ImpossibleTime`. If it `is_fact`, another system said at
    `event_at` that it happened: store it, with a warning about what does not fit. Before the payment, which
    may be on its way, only store it (see `OrderChange.tell_waiting`).
    """
    change = lock_order(order_id)
    order, now = change.order, change.now
    _check_own(order)
    if not is_fact and shipped_at and (fault := _find_fault(shipped_at, placed_at=order.created_at, now=now)):
        raise ImpossibleTime(fault)
    shipments = read_shipments(order)
    shipment = next((other for other in shipments if reference and other.reference == reference), None)
    if shipment is not None and shipment.shipped_at is not None:
        lacking = {
            name: tracking[name] for name in TRACKING if tracking.get(name) and not getattr(shipment, name)
        }
        if lacking and order.email != ERASED_ADDRESS:
            shipment = lock_shipment(shipment, shipments)
            _set_tracking(shipment, lacking)
            _record(change, "order.shipment_updated", shipment, shipments)
        return change, shipment
    if order.status not in SHIPPABLE and not is_fact:
        raise InvalidTransition(order=order, action="shipments")
    left = count_left(order, shipments)
    if lines is None:
        lines = list_lines(left)
        is_too_much = bool(order.items) and not lines
    else:
        is_too_much = _exceeds(lines, left)
    is_unknown = _has_unknown(lines, order)
    if (is_too_much or is_unknown) and not is_fact:
        raise MoreThanOrdered(left=left)
    if is_unknown:
        change.warn(UNKNOWN_ITEM, about="shipment")
    if is_too_much:
        change.warn("More left in parcels than was ordered.", about="shipment")
    if shipment is None:
        if len(shipments) >= MOST_SHIPMENTS and not is_fact:
            raise TooManyShipments
        shipment = Shipment(order_id=order.id, reference=reference)
        shipments.append(shipment)
    else:  # only its delivery was told
        shipment = lock_shipment(shipment, shipments)
    shipment.lines = [dict(line) for line in lines]
    shipment.shipped_at = _read_time(
        change, "shippedAt", shipped_at, event_at=event_at, placed_at=order.created_at, about="shipment"
    )
    if order.email != ERASED_ADDRESS:
        _set_tracking(shipment, tracking)
    if order.status == Order.Status.PENDING:
        shipment.untold_since = order.updated_at = now
        order.untold_since = order.untold_since or now
        change.rows.append(shipment)
    else:
        change.tell_parcel(shipment, shipments)
    return change, shipment


def correct(
    *, order_id: uuid.UUID, shipment_id: uuid.UUID, notify: bool = False, **tracking: str
) -> tuple[OrderChange, Shipment]:
    """Correct the tracking of a parcel. Send its e-mail again only if `notify` says so."""
    change, shipment, shipments = _find(order_id, shipment_id)
    if change.order.email == ERASED_ADDRESS or not _set_tracking(shipment, tracking):
        return change, shipment
    is_told = _record(change, "order.shipment_updated", shipment, shipments)
    if notify and is_told:
        news = shown("order.shipped", change.order, shipment, shipments)
        news |= {"at": change.now, "corrected": True}
        change.add_emails("order.shipped", shown=change.order, change=news)
    return change, shipment


def deliver(
    *, order_id: uuid.UUID, shipment_id: uuid.UUID, at: dt.datetime | None = None
) -> tuple[OrderChange, Shipment]:
    """Record that a parcel was delivered. A repeat changes nothing."""
    change, shipment, shipments = _find(order_id, shipment_id)
    _end(change, shipment, shipments, "delivered_at", at)
    return change, shipment


def take_return(
    *, order_id: uuid.UUID, shipment_id: uuid.UUID, at: dt.datetime | None = None
) -> tuple[OrderChange, Shipment]:
    """Record that a parcel came back. Its quantities can be shipped again. A repeat changes nothing."""
    change, shipment, shipments = _find(order_id, shipment_id)
    _end(change, shipment, shipments, "returned_at", at)
    return change, shipment


def note_end(
    *,
    order_id: uuid.UUID,
    reference: str,
    column: str,
    at: dt.datetime | None = None,
    event_at: dt.datetime | None = None,
) -> tuple[OrderChange, Shipment]:
    """Record that the parcel with this reference was delivered or returned: `column` says which.

    If the parcel is not known or not told yet, remember the end, and make neither an event nor an e-mail.
    """
    change = lock_order(order_id)
    _check_own(change.order)
    at = _read_time(
        change, camel(column), at, event_at=event_at, placed_at=change.order.created_at, about="shipment"
    )
    shipments = read_shipments(change.order)
    shipment = next((other for other in shipments if other.reference == reference), None)
    if shipment is None:
        shipment = Shipment(order_id=order_id, reference=reference)
        setattr(shipment, column, at)
        change.rows.append(shipment)
        return change, shipment
    shipment = lock_shipment(shipment, shipments)
    _end(change, shipment, shipments, column, at)
    return change, shipment


def report(
    change: OrderChange,
    *,
    reported: Order,
    at: dt.datetime | None,
    is_history: bool,
    reference: str,
    lines: Sequence[Line] = (),
    shipped_at: dt.datetime | None = None,
    delivered_at: dt.datetime | None = None,
    returned_at: dt.datetime | None = None,
    is_corrected: bool = False,
    others: Sequence[Mapping[str, str]] = (),
    **tracking: str,
) -> None:
    """Add the parcel of another system's order to the change that `apply_reported_state` made of `reported`.

    The report with the highest sequence decides what the parcel is, except that a delivery stays. Its first
    report sends an e-mail, in whatever order they arrive, and so does the first one that has its delivery.
    It also names the tracking of `others`. A corrected number `is_corrected`, and sends the first e-mail
    again. History sends none, and neither does a parcel that came back.
    """
    order = change.order
    about = f"order.shipped, sequence {reported.version}"
    if _has_unknown(lines, reported):
        change.warn(f"shipment.lines: {UNKNOWN_ITEM}", about=about)

    def read_time(name: str, time: dt.datetime | None) -> dt.datetime:
        name = f"shipment.{name}"
        return _read_time(change, name, time, event_at=at, placed_at=reported.created_at, about=about)

    left_at = read_time("shippedAt", shipped_at)
    delivered_at = delivered_at and read_time("deliveredAt", delivered_at)
    returned_at = returned_at and read_time("returnedAt", returned_at)
    shipments = read_shipments(order)
    shipment = next((other for other in shipments if other.reference == reference), None)
    if shipment is None:
        shipment = Shipment(order_id=order.id, reference=reference)
        shipments.append(shipment)
    else:
        shipment = lock_shipment(shipment, shipments)
    was_shipped, was_delivered = shipment.shipped_at is not None, shipment.delivered_at is not None
    if shipment.sequence is None or reported.version > shipment.sequence:
        shipment.sequence = reported.version
        shipment.lines = [dict(line) for line in lines]
        shipment.shipped_at, shipment.returned_at = left_at, returned_at
        if order.email != ERASED_ADDRESS:
            _set_tracking(shipment, dict.fromkeys(TRACKING, "") | tracking)
    if delivered_at is not None:  # the earliest time counts, as of a payment
        shipment.delivered_at = min(filter(None, [shipment.delivered_at, delivered_at]))
    order.fulfilment = compute_fulfilment(order, shipments)
    change.rows.append(shipment)
    if is_history or shipment.returned_at:
        return
    event = None
    if is_corrected:
        event = "order.shipped"
    elif shipment.delivered_at and not was_delivered:
        event = "order.delivered"
    elif not was_shipped:
        event = "order.shipped"
    if event is not None:
        news = shown(event, order, shipment, shipments)
        news["parcels"] = list(others)
        if is_corrected:
            news |= {"at": change.now, "corrected": True}
        change.add_emails(event, shown=reported, change=news, may_exist=True)


def _has_unknown(lines: Sequence[Line], order: Order) -> bool:
    return any(line["item"] >= len(order.items) for line in lines)


def _exceeds(lines: Sequence[Line], left: Sequence[int]) -> bool:
    wanted = [0] * len(left)
    for line in lines:
        if line["item"] < len(left):
            wanted[line["item"]] += line["quantity"]
    return any(quantity > most for quantity, most in zip(wanted, left, strict=True))


def _find_fault(at: dt.datetime, *, placed_at: dt.datetime, now: dt.datetime) -> str:
    """Say why a parcel cannot have left at this time, or return ""."""
    if at > now + CLOCKS_APART:
        return "It is in the future."
    return "It is more than a year before the order." if placed_at - at > OLDEST else ""


def _read_time(
    change: OrderChange,
    name: str,
    at: dt.datetime | None,
    *,
    event_at: dt.datetime | None,
    placed_at: dt.datetime,
    about: str,
) -> dt.datetime:
    """Return the time that an event gives, or that of the event, with a warning if it cannot be that."""
    if at is not None and at != event_at and (fault := _find_fault(at, placed_at=placed_at, now=change.now)):
        change.warn(f"{name}: {fault} The event's time is used.", about=about)
        at = None
    return min(at or event_at or change.now, change.now)


def _check_own(order: Order) -> None:
    if order.source:
        raise ExternallyOwned(order=order)


def _find(order_id: uuid.UUID, shipment_id: uuid.UUID) -> tuple[OrderChange, Shipment, list[Shipment]]:
    """Lock an order and one of its shipments, and read the others."""
    change = lock_order(order_id)
    _check_own(change.order)
    shipments = read_shipments(change.order)
    shipment = next((other for other in shipments if other.id == shipment_id), None)
    if shipment is None:
        raise ShipmentNotFound("The order has no such shipment.")
    return change, lock_shipment(shipment, shipments), shipments


def _set_tracking(shipment: Shipment, tracking: Mapping[str, str]) -> bool:
    """Set the values of `TRACKING`. Return whether they differ."""
    before = [getattr(shipment, name) for name in TRACKING]
    for name in tracking.keys() & set(TRACKING):
        setattr(shipment, name, tracking[name])
    return before != [getattr(shipment, name) for name in TRACKING]


def _end(
    change: OrderChange,
    shipment: Shipment,
    shipments: Sequence[Shipment],
    column: str,
    at: dt.datetime | None,
) -> None:
    """Set the time of a parcel's delivery or return, unless it has one.

    The delivery of a parcel that came back since is no news.
    """
    if getattr(shipment, column) is not None:
        return
    is_news = shipment.returned_at is None
    setattr(shipment, column, min(at or change.now, change.now))
    _record(change, ENDS[column], shipment, shipments, is_news=is_news)


def _record(
    change: OrderChange,
    event: str,
    shipment: Shipment,
    shipments: Sequence[Shipment],
    *,
    is_news: bool = True,
) -> bool:
    """Record a change of a parcel that is told. Of another one, only save it. Return whether it is told."""
    is_told = shipment.shipped_at is not None and shipment.untold_since is None
    if is_told:
        change.record_parcel(event, shipment, shipments, is_news=is_news)
    else:
        change.rows.append(shipment)
    return is_told
