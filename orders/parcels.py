"""The sums of an order's parcels: what is left, how much has left, what events and e-mails say of one.

orders.shipments changes parcels. These functions change no parcel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orders.models import TRACKING, Order, Shipment
from runtime.personal_data import ERASED_ADDRESS

#: The statuses of an order from which parcels leave.
SHIPPABLE = (
    Order.Status.PAID,
    Order.Status.CONFIRMED,
    Order.Status.PART_REFUNDED,
    Order.Status.COMPLETED,
)
#: The event of each end of a parcel, by the column with its time, in the order in which they happen.
ENDS = {"delivered_at": "order.delivered", "returned_at": "order.shipment_returned"}
#: A line of a shipment: the index of an item of the order, and how many of it.
Line = Mapping[str, int]


def read_shipments(order: Order) -> list[Shipment]:
    """Return the order's shipments, oldest first."""
    return list(Shipment.objects.filter(order_id=order.id).order_by("id"))


def count_left(order: Order, shipments: Sequence[Shipment]) -> list[int]:
    """Return how many of each item are left to ship. A returned parcel frees its quantities."""
    return _count_unsent(order, [shipment for shipment in shipments if not shipment.returned_at])


def _count_unsent(order: Order, shipments: Sequence[Shipment]) -> list[int]:
    left = [int(item["quantity"]) for item in order.items]
    for shipment in shipments:
        for line in shipment.lines if shipment.shipped_at else ():
            if line["item"] < len(left):
                left[line["item"]] = max(0, left[line["item"]] - line["quantity"])
    return left


def told(shipments: Sequence[Shipment]) -> list[Shipment]:
    """Return the shipments that do not wait for the payment."""
    return [shipment for shipment in shipments if shipment.untold_since is None]


def list_lines(quantities: Sequence[int]) -> list[dict[str, int]]:
    return [{"item": item, "quantity": quantity} for item, quantity in enumerate(quantities) if quantity]


def compute_fulfilment(order: Order, shipments: Sequence[Shipment]) -> Order.Fulfilment:
    """Return how much of an order is told to have left. A parcel without lines may have all of it."""
    away = [shipment for shipment in told(shipments) if shipment.shipped_at and not shipment.returned_at]
    if not away:
        return Order.Fulfilment.NONE
    is_all = any(not shipment.lines for shipment in away) or not any(count_left(order, away))
    if not is_all and order.completed_at is None:
        return Order.Fulfilment.PART_SHIPPED
    is_delivered = all(shipment.delivered_at for shipment in away)
    return Order.Fulfilment.DELIVERED if is_delivered else Order.Fulfilment.SHIPPED


def event_details(order: Order, shipment: Shipment) -> dict[str, Any]:
    """Return what an event says of a shipment. Of an erased person's, it has no tracking."""
    tracking = {
        "carrier": shipment.carrier,
        "trackingNumber": shipment.tracking_number,
        "trackingUrl": shipment.tracking_url,
    }
    times = {
        "shippedAt": shipment.shipped_at,
        "deliveredAt": shipment.delivered_at,
        "returnedAt": shipment.returned_at,
    }
    return {
        "shipmentId": str(shipment.id),
        "lines": shipment.lines,
        **({"reference": shipment.reference} if shipment.reference else {}),
        **({name: value for name, value in tracking.items() if value and order.email != ERASED_ADDRESS}),
        **{name: time.isoformat() for name, time in times.items() if time is not None},
    }


def shown(event: str, order: Order, shipment: Shipment, shipments: Sequence[Shipment]) -> dict[str, Any]:
    """Return what the e-mail about `event` shows of a shipment (see `email_context`).

    It promises only what never left, because a customer who sent a parcel back may not want it again. It
    promises nothing if nobody said what is in some parcel, or if the order is completed.
    """
    shipments = told(shipments)
    is_said = all(other.lines for other in shipments if other.shipped_at)
    unsent = _count_unsent(order, shipments) if is_said and order.completed_at is None else []
    return {
        "at": shipment.delivered_at if event == "order.delivered" else shipment.shipped_at,
        **{name: getattr(shipment, name) for name in TRACKING},
        "shipped_at": shipment.shipped_at,
        "parcel_lines": shipment.lines,
        "left_lines": [
            {"item": item, "quantity": quantity} for item, quantity in enumerate(unsent) if quantity
        ],
        "all_shipped": is_said and not any(count_left(order, shipments)),
    }


def shown_in_preview(event: str, order: Order) -> dict[str, Any]:
    """Return what a preview shows of the order's newest parcel, or of one with all of its items."""
    shipments = told(read_shipments(order))
    sent = [shipment for shipment in shipments if shipment.shipped_at]
    if not sent:
        lines = list_lines(count_left(order, []))
        sent = shipments = [Shipment(order_id=order.id, lines=lines, shipped_at=order.updated_at)]
    news = shown(event, order, sent[-1], shipments)
    return news | {"at": news["at"] or order.updated_at}
