"""The order of a shop here, as its posts change it, without a database."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from orders.breakdown import as_stored
from orders.models import Order, Shipment
from orders.services import REPORTED_COLUMNS, REPORTED_TIMES
from shop_connections.apply import parcel_of, row_of
from shop_connections.changes import Change, Differences, Here, find_changes
from shop_connections.models import ShopConnection
from shop_connections.process import NEVER
from shop_connections.woocommerce.read import read_order, read_status
from tests.kit.woocommerce import FakeShop

SOURCE = "tea-shop"
ID = uuid.UUID(int=7)


def find(
    body: bytes,
    here: Here | None,
    shop: ShopConnection,
    *,
    received_at: dt.datetime,
    offset: dt.timedelta = dt.timedelta(),
    first_post_at: dt.datetime | None = None,
) -> Differences:
    there = read_order(body, locale="en")
    assert there is not None
    there = there.on_our_clock(offset, received_at=received_at)
    return find_changes(here, there, shop=shop, received_at=received_at, first_post_at=first_post_at)


class Seen:
    """The order here, and its e-mails."""

    def __init__(self, **statuses: str) -> None:
        self.here: Here | None = None
        self.connection = ShopConnection(
            source=SOURCE,
            state="trial",
            statuses={read_status(name.replace("_", "-")): status for name, status in statuses.items()},
        )
        self.emails: list[str] = []
        self.changes: list[Change] = []
        self.doubts: list[str] = []
        self.parcels: list[dict[str, Any]] = []

    @property
    def order(self) -> Order:
        assert self.here is not None
        return self.here.order

    def find(self, body: bytes) -> Differences:
        return find(body, self.here, self.connection, received_at=dt.datetime.now(dt.UTC))

    def take(self, body: bytes) -> list[str]:
        """Take a post, and return its e-mails and, in brackets, its changes without one."""
        return self.save(self.find(body)) if read_order(body, locale="en") is not None else []

    def save(self, differences: Differences) -> list[str]:
        """Save what a post changes as `shop_connections.process` does."""
        self.doubts += differences.doubts
        told = [self._apply(differences, change) for change in differences.changes]
        if self.here is not None:
            refunds = {refund.id: refund.amount for refund in differences.order.refunds}
            self.here = self.here._replace(refunds={**refunds, **self.here.refunds})
            times = filter(None, [self.order.reported_at, differences.order.modified_at])
            self.order.reported_at = max(times, default=NEVER)
        return told

    def take_all(self, shop: FakeShop) -> list[str]:
        return [told for _, body in shop.deliveries() for told in self.take(body)]

    def change(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self.order, name, value)

    def _apply(self, differences: Differences, change: Change) -> str:
        """Save a change as the services of orders do."""
        self.changes.append(change)
        before = self.here
        stored = as_stored(differences.order.items, differences.order.charges)
        version = before.order.version + 1 if before else 1
        new = row_of(differences.order, change, stored, before, self.connection, id=ID, version=version)
        if before is None:
            new.created_at = differences.order.created_at
            self.here = Here(new, [], {})
        else:
            for name in REPORTED_COLUMNS:
                setattr(self.order, name, getattr(new, name))
        for event, column in REPORTED_TIMES.items():
            at = change.at if change.notify and event == change.event else None
            times = [getattr(before.order, column) if before else None, getattr(new, column), at]
            setattr(self.order, column, min(filter(None, times), default=None))
        self._check()
        if change.parcel is not None:
            self._set_parcel(parcel_of(differences.order, change, stored, before))
        if not change.notify:
            return f"({change.event})"
        self.emails.append(change.event)
        return change.event

    def _set_parcel(self, values: dict[str, Any]) -> None:
        assert self.here is not None
        self.parcels.append(values)
        shipments = list(self.here.shipments)
        shipment = next((each for each in shipments if each.reference == values["reference"]), None)
        if shipment is None:
            shipment = Shipment(id=uuid.uuid4(), reference=values["reference"])
            shipments.append(shipment)
        for name in ("lines", "carrier", "tracking_number", "tracking_url", "shipped_at", "returned_at"):
            setattr(shipment, name, values[name])
        shipment.delivered_at = shipment.delivered_at or values["delivered_at"]
        self.here = self.here._replace(shipments=shipments)

    def _check(self) -> None:
        """Check what the table's constraints do."""
        order = self.order
        refunded, total = order.refunded_amount, order.total_amount
        fits = {"refunded": refunded == total, "cancelled": 0 <= refunded <= total}
        assert fits.get(order.status, refunded == 0) or (
            order.status == "part_refunded" and 0 < refunded < total
        )

    @property
    def state(self) -> tuple[str, int]:
        return self.order.status, self.order.refunded_amount
