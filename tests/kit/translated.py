"""The order of a shop here, as the events of its translated posts make it, without a database."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from typing import Any

from events.consuming.envelope import envelope_of
from orders.breakdown import as_stored
from orders.events import EVENTS
from orders.fields import pack_details
from orders.inbound.external import BODIES, SHIPPED
from orders.inbound.fallbacks import use_fallbacks
from orders.inbound.reading import read_data
from shop_connections.translation import Stored, StoredShipment
from shop_connections.woocommerce.order import read_order_id
from shop_connections.woocommerce.translate import translate
from tests.kit.woocommerce import FakeShop

NAMES = {EVENTS[name].topic: name for name in BODIES} | {SHIPPED: "order.shipped"}
SOURCE = "tea-shop"


class Here:
    """The order here, as its events make it, and its e-mails."""

    def __init__(self, **mapping: str) -> None:
        self.stored: Stored | None = None
        self.mapping = {name.replace("_", "-"): status for name, status in mapping.items()}
        self.emails: list[str] = []
        self.ids: set[str] = set()
        self.repeats = 0
        self.details: list[dict[str, Any]] = []
        self.doubts: list[str] = []

    def take(self, body: bytes) -> list[str]:
        """Take a post, and return its e-mails and, in brackets, its events without an e-mail."""
        if read_order_id(body) is None:
            return []
        translation = translate(
            body,
            stored=self.stored,
            source=SOURCE,
            mapping=self.mapping,
            received_at=dt.datetime.now(dt.UTC),
        )
        self.doubts += translation.doubts
        told = [self.apply(event) for event in translation.events if not self.is_repeat(event)]
        if self.stored is not None:
            newest = max(filter(None, [self.stored.modified_at, translation.modified_at]))
            self.change(modified_at=newest)
        return told

    def take_all(self, shop: FakeShop) -> list[str]:
        return [told for _, body in shop.deliveries() for told in self.take(body)]

    def change(self, **values: Any) -> None:
        assert self.stored is not None
        fields = {name: getattr(self.stored, name) for name in Stored.__slots__}
        self.stored = Stored(**fields | values)

    def is_repeat(self, event: Mapping[str, Any]) -> bool:
        """Return whether the inbox has the event."""
        self.repeats += event["eventId"] in self.ids
        return event["eventId"] in self.ids

    def apply(self, event: Mapping[str, Any]) -> str:
        topic, data = event["eventType"], event["data"]
        envelope_of(json.loads(json.dumps(event)), topic=topic)
        name, is_silent = NAMES[topic], data.get("notify") is False
        assert event["metadata"]["sequence"] > (self.stored.version if self.stored else 0)
        self.ids.add(event["eventId"])
        self.details.append(data)
        row = self._row(name, data)
        before = self.stored
        shipments = dict(before.shipments) if before else {}
        if "shipment" in data:
            shipment = data["shipment"]
            if "deliveredAt" in shipment and shipment["reference"] in shipments:
                name = "order.delivered"
            shipments[shipment["reference"]] = StoredShipment(
                carrier=shipment.get("carrier", ""),
                tracking_url=shipment.get("trackingUrl", ""),
                is_delivered="deliveredAt" in shipment,
            )
        self.stored = Stored(
            version=event["metadata"]["sequence"],
            is_paid=(before is not None and before.is_paid) or (name == "order.paid" and not is_silent),
            is_completed=(before is not None and before.is_completed)
            or (name == "order.completed" and not is_silent),
            modified_at=before.modified_at if before else None,
            shipments=shipments,
            **row,
        )
        if is_silent:
            return f"({name})"
        self.emails.append(name)
        return name

    def _row(self, name: str, data: dict[str, Any]) -> dict[str, Any]:
        """Return the columns as the reader of such events makes them. A warning would be news to the shop."""
        body, statuses, _ = BODIES[name]
        values, warnings = use_fallbacks(read_data(body, data, strict=False))
        if "shipment" in values:
            warnings += use_fallbacks(values["shipment"])[1]
        stored = as_stored(values["items"], values["charges"])
        values |= {"items": stored.items, "charges": stored.charges, "details": {}}
        values = pack_details(values)
        assert values["status"] in statuses
        assert not [line for line in warnings if not line.startswith("email")]
        money = ("total_amount", "refunded_amount", "currency", "items", "charges")
        row = {column: values[column] for column in ("status", "reference", "details", *money)}
        return row | {"email": values.get("email", ""), "name": values.get("name", "")}

    @property
    def state(self) -> tuple[str, int]:
        assert self.stored is not None
        return self.stored.status, self.stored.refunded_amount
