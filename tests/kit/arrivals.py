"""What an own order's payment, cancellation, completion and parcel come to, in whatever order they arrive.

The parcel has one of two items, so that `fulfilment` tells a completed order from another one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from tests.kit.events import INSUFFICIENT, PAID, envelope
from tests.kit.inbound_commands import COMPLETE

STEPS = ("paid", "created", "delivered", "returned", "cancelled", "completed")
TOPICS = {
    "paid": PAID,
    "created": "fulfilment.shipment.created.v1",
    "delivered": "fulfilment.shipment.delivered.v1",
    "returned": "fulfilment.shipment.returned.v1",
    "cancelled": INSUFFICIENT,
    "completed": COMPLETE,
}
ITEMS = [{"sku": "TEA", "name": "Tea", "quantity": 2, "unit_amount": 500}]
LINES = [{"item": 0, "quantity": 1}]
CANCELLED = "shipment: A parcel left though the order is cancelled."
PENDING = "shipment: A parcel left though the order is pending."


def event_of(step: str, order_id: object) -> dict[str, Any]:
    """Make the event by which another service tells of a step."""
    data: dict[str, Any] = {"orderId": str(order_id)}
    if TOPICS[step].startswith("fulfilment"):
        data["reference"] = "P-1"
    if step == "created":
        data |= {"lines": LINES, "carrier": "DHL", "trackingNumber": "42"}
    return envelope(TOPICS[step], data)


def arrivals() -> Iterator[tuple[str, ...]]:
    """Yield all orders in which all steps can arrive. Their beginnings are those of fewer steps."""
    return itertools.permutations(STEPS)


class Expected:
    """An order and its parcel as they must be after some steps. It is told nothing of the product."""

    def __init__(self) -> None:
        self.status = "pending"
        self.times = dict.fromkeys(("created", "delivered", "returned"), False)
        self.is_told = False
        self.events = ["order.placed"]
        self.emails = ["order.placed"]
        self.warnings: list[str] = []
        self.refused: list[str] = []

    @classmethod
    def after(cls, steps: tuple[str, ...]) -> Expected:
        expected = cls()
        for step in steps:
            expected.take(step)
        return expected

    @property
    def fulfilment(self) -> str:
        if not self.is_told or self.times["returned"]:
            return "none"
        if self.status != "completed":
            return "part_shipped"
        return "delivered" if self.times["delivered"] else "shipped"

    def take(self, step: str) -> None:
        if step in self.times:
            self._take_parcel(step)
            return
        allowed = {"paid": ["pending"], "cancelled": ["pending", "paid"], "completed": ["paid"]}
        if self.status not in allowed[step]:
            self.refused.append(step)
            return
        self.status = step
        self._record(f"order.{step}")
        if self.times["created"] and not self.is_told:
            self._tell()

    def tell_late(self) -> None:
        """Tell the parcel as after ten minutes."""
        if self.times["created"] and not self.is_told:
            self._tell()

    def _take_parcel(self, step: str) -> None:
        self.times[step] = True
        if step == "created" and self.status != "pending":
            self._tell()
        elif self.is_told:
            self._record_end(step)

    def _tell(self) -> None:
        self.is_told = True
        ended = [end for end in ("delivered", "returned") if self.times[end]]
        if self.status in ("pending", "cancelled"):
            self.warnings.append({"pending": PENDING, "cancelled": CANCELLED}[self.status])
        self._record("order.shipped", is_news=not ended)
        for end in ended:
            self._record_end(end)

    def _record_end(self, end: str) -> None:
        if end == "delivered":
            self._record("order.delivered", is_news=not self.times["returned"])
        else:
            self._record("order.shipment_returned", is_news=False)

    def _record(self, event: str, *, is_news: bool = True) -> None:
        self.events.append(event)
        if is_news:
            self.emails.append(event)

    def facts(self) -> Mapping[str, Any]:
        """Return what `read` must find. An event's place in its list is the version after it."""
        return {
            "status": self.status,
            "fulfilment": self.fulfilment,
            "times": self.times,
            "events": list(enumerate(self.events, 1)),
            "emails": [(self.events.index(event) + 1, event) for event in self.emails],
            "warnings": self.warnings,
        }


#: The rows of all orders, for `facts_of`.
QUERIES = {
    "order": "SELECT id, status, fulfilment,"
    " ARRAY(SELECT line->>'text' FROM jsonb_array_elements(warnings) AS line) FROM orders ORDER BY id",
    "parcel": "SELECT order_id, shipped_at, delivered_at, returned_at FROM shipments ORDER BY id",
    "events": "SELECT aggregate_id, sequence, event_type FROM outbox_events"
    " WHERE aggregate_type = 'order' ORDER BY position",
    "emails": "SELECT order_id, order_version, event_type FROM email_notifications ORDER BY id",
}


def read_facts(query: Any) -> dict[str, dict[str, Any]]:
    """Return what the tables say of each order, by its id. `query` runs SQL and returns the rows."""
    from tests.kit.words import EVENTS

    names = {event.topic: event.name for event in EVENTS.values()}
    facts: dict[str, dict[str, Any]] = {}
    for id, status, fulfilment, warnings in query(QUERIES["order"]):
        facts[str(id)] = {
            "status": status,
            "fulfilment": fulfilment,
            "times": dict.fromkeys(("created", "delivered", "returned"), False),
            "events": [],
            "emails": [],
            "warnings": warnings,
        }
    for id, *times in query(QUERIES["parcel"]):
        of_order = facts[str(id)]
        of_order["times"] = dict(zip(of_order["times"], (time is not None for time in times), strict=True))
    for id, sequence, topic in query(QUERIES["events"]):
        facts[str(id)]["events"].append((sequence, names[topic]))
    for id, version, event in query(QUERIES["emails"]):
        facts[str(id)]["emails"].append((version, event))
    return facts
