"""Save what a comparison found: the order, its parcels, refunds and e-mails, by the services of orders."""

from __future__ import annotations

import datetime as dt
import time
import uuid
from typing import Any

from orders.breakdown import StoredParts, as_stored
from orders.emails import default_locale
from orders.inbound.external import our_id, save_reported
from orders.models import Order, OrderRefund, RefundWay
from orders.parcels import read_shipments
from orders.services import lock_order
from runtime.telemetry import context
from shop_connections.changes import Change, Differences, Here
from shop_connections.models import ShopConnection
from shop_connections.shop_order import WholeOrder


class TooSlow(Exception):
    """The changes of a post take too long."""


def read_here(order: Order) -> Here:
    """Return an order with what the shop told of it."""
    refunds = OrderRefund.objects.filter(order_id=order.id, way=RefundWay.SHOP)
    amounts = {str(id): amount for id, amount in refunds.values_list("refund_id", "amount")}
    return Here(order, read_shipments(order), amounts)


def save_changes(
    differences: Differences,
    here: Here | None,
    shop: ShopConnection,
    *,
    id: uuid.UUID,
    received_at: dt.datetime,
    until: float,
) -> None:
    """Save the changes of a post, its doubts and the refunds that it names, each once."""
    noted = {line["text"] for line in here.order.warnings} if here else set()
    doubts = [doubt for doubt in dict.fromkeys(differences.doubts) if doubt not in noted]
    stored = as_stored(differences.order.items, differences.order.charges)
    version = here.order.version if here else 0
    for change in differences.changes:
        if time.monotonic() > until:
            raise TooSlow
        version += 1
        reported = row_of(differences.order, change, stored, here, shop, id=id, version=version)
        parcel = parcel_of(differences.order, change, stored, here) if change.parcel else None
        save_reported(
            reported=reported,
            event=change.event,
            at=min(change.at, received_at),
            placed_at=differences.order.created_at,
            is_history=not change.notify,
            withheld=shop.withheld(change.at),
            may_change_currency=True,
            parcel=parcel,
            doubts=doubts,
            **({} if parcel else change.details),
        )
        doubts = []
    if here is not None and doubts:
        noted_alone = lock_order(here.order.id)
        for doubt in doubts:
            noted_alone.warn(doubt)
        noted_alone.save()
    if here is not None or differences.changes:
        told = here.refunds if here else {}
        rows = [
            OrderRefund(
                order_id=id,
                refund_id=refund.id,
                amount=refund.amount,
                way=RefundWay.SHOP,
                at=received_at,
            )
            for refund in differences.order.refunds
            if refund.id not in told
        ]
        OrderRefund.objects.bulk_create(rows, batch_size=1000)


def row_of(
    there: WholeOrder,
    change: Change,
    stored: StoredParts,
    here: Here | None,
    shop: ShopConnection,
    *,
    id: uuid.UUID,
    version: int,
) -> Order:
    """Return the order after a change, unsaved."""
    source, work = shop.source, context.current()
    if here is None:
        stored_user, locale = None, default_locale(source=source)
    else:
        stored_user, locale = here.order.user_id, here.order.locale
    user_id = our_id(source=source, id=there.user_id or f"guest-{there.id}")
    link = there.details.get("order_url")
    is_paid = change.status != Order.Status.PENDING
    return Order(
        id=id,
        source=source,
        version=version,
        status=change.status,
        refunded_amount=change.refunded,
        total_amount=there.total,
        currency=there.currency,
        user_id=stored_user if stored_user and there.user_id is None else user_id,
        email=there.email or (here.order.email if here else ""),
        name=there.name,
        reference=there.number,
        locale=there.locale or locale,
        items=stored.items,
        charges=stored.charges,
        details={
            name: value
            for name, value in there.details.items()
            if name != "order_url" or shop.has_host(str(link))
        },
        paid_at=there.paid_at if is_paid else None,
        completed_at=there.completed_at if is_paid else None,
        correlation_id=work.correlation_id,
        traceparent=work.traceparent,
    )


def parcel_of(there: WholeOrder, change: Change, stored: StoredParts, here: Here | None) -> dict[str, Any]:
    """Return the values of a changed parcel. Keep those that the shop no longer gives."""
    parcel = change.parcel
    assert parcel is not None
    before = (
        next((each for each in here.shipments if each.reference == change.reference), None) if here else None
    )
    lines = stored.move_lines([{"item": item, "quantity": quantity} for item, quantity in parcel.lines])
    left_at = (before and before.shipped_at) or parcel.shipped_at or change.at
    return {
        "reference": change.reference,
        "lines": lines or (before.lines if before else []),
        "tracking_number": parcel.tracking_number,
        "carrier": parcel.carrier or (before.carrier if before else ""),
        "tracking_url": parcel.tracking_url or (before.tracking_url if before else ""),
        "shipped_at": min(left_at, there.saved_at or left_at),
        "delivered_at": change.at if parcel.is_delivered else None,
        "returned_at": change.at if parcel.is_returned else None,
        "is_corrected": change.is_corrected,
        "others": change.details.get("parcels", ()),
    }
