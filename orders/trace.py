"""The history of one correlation id, across orders, as a tree of causes and effects. For `manage.py trace`.

The hash indexes on `correlation_id` find the orders and e-mails. The timelines of these orders give the rest.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Iterable

from notifications.models import EmailNotification
from orders.models import Order
from orders.timeline import Entry, read_timeline
from outbox.models import ProcessedEvent

#: A trace of more orders, such as a bulk job's, shows only its oldest ones.
MOST_ORDERS = 100
_MOST_EMAILS = 10_000


@dataclasses.dataclass(slots=True)
class Node:
    """One thing that happened, and its effects. `happened_at` is None for an order, which has many."""

    text: str
    happened_at: dt.datetime | None = None
    is_plan: bool = False
    children: list[Node] = dataclasses.field(default_factory=list)

    def add(self, node: Node) -> Node:
        self.children.append(node)
        return node


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """`orders` are the roots of trees."""

    correlation_id: str
    trace_ids: list[str]
    orders: list[Node]
    more_orders: int


def is_known(*, correlation_id: str) -> bool:
    """Return whether an order or a live e-mail has this correlation id."""
    return bool(correlation_id) and any(
        model.objects.filter(correlation_id=correlation_id).exists() for model in (Order, EmailNotification)
    )


def read_trace(*, correlation_id: str) -> Trace:
    """Read the trace: a few statements, and those of the timeline of each order shown."""
    mailed = EmailNotification.objects.filter(correlation_id=correlation_id)
    ids = set(mailed.values_list("order_id", flat=True)[:_MOST_EMAILS])
    ids |= set(
        Order.objects.filter(correlation_id=correlation_id).values_list("id", flat=True)[:_MOST_EMAILS]
    )
    orders = list(Order.objects.filter(id__in=ids).order_by("created_at", "id")[:MOST_ORDERS])
    timelines = [read_timeline(order=order) for order in orders]
    parts = [_belonging(timeline, correlation_id) for timeline in timelines]
    inbox = _inbox(entry.cause for part in parts for entry in part)
    return Trace(
        correlation_id=correlation_id,
        trace_ids=sorted({entry.trace_id for part in parts for entry in part if entry.trace_id}),
        orders=[
            _tree(order, part, len(timeline) - len(part), inbox)
            for order, timeline, part in zip(orders, timelines, parts, strict=True)
        ],
        more_orders=max(0, len(ids) - MOST_ORDERS),
    )


def _belonging(timeline: Iterable[Entry], correlation_id: str) -> list[Entry]:
    """Return the entries of this correlation id, and the acts of people on its e-mails."""
    timeline = list(timeline)
    mails = {one.notification_id for one in timeline if one.correlation_id == correlation_id} - {None}
    return [
        entry
        for entry in timeline
        if entry.correlation_id == correlation_id
        or (not entry.correlation_id and entry.notification_id in mails)
    ]


def _inbox(causes: Iterable[uuid.UUID | None]) -> dict[uuid.UUID, ProcessedEvent]:
    wanted = {cause for cause in causes if cause is not None}
    if not wanted:
        return {}
    return {row.event_id: row for row in ProcessedEvent.objects.filter(event_id__in=wanted)}


def _tree(
    order: Order, entries: Iterable[Entry], elsewhere: int, inbox: dict[uuid.UUID, ProcessedEvent]
) -> Node:
    """Put each entry below its cause."""
    root = Node(f"Order {order.id}{f' ({order.reference})' if order.reference else ''}: {order.status}")
    inbound: dict[uuid.UUID, Node] = {}
    by_event: dict[uuid.UUID, Node] = {}
    by_mail: dict[uuid.UUID, Node] = {}
    by_time: dict[dt.datetime, Node] = {}  # one statement writes a change and its e-mail
    for entry in entries:
        node = Node(entry.text + (f" ({entry.by})" if entry.by else ""), entry.at, entry.kind == "plan")
        if entry.kind == "change":
            above = root
            if entry.cause is not None:
                if entry.cause not in inbound:
                    inbound[entry.cause] = root.add(_received(entry.cause, entry.at, inbox))
                above = inbound[entry.cause]
            by_time[entry.at] = above.add(node)
            if entry.event_id:
                by_event[entry.event_id] = node
        elif entry.notification_id:
            if entry.notification_id in by_mail:
                by_mail[entry.notification_id].add(node)
            else:
                node.text += f" [{entry.notification_id}]"
                by_mail[entry.notification_id] = by_time.get(entry.at, root).add(node)
        else:
            if entry.event_id:
                node.text += f" [{entry.event_id}]"
            (by_event.get(entry.event_id, root) if entry.event_id else root).add(node)
    if elsewhere:
        root.add(Node(f"{elsewhere} more of other correlation ids: manage.py timeline {order.id}"))
    return root


def _received(id: uuid.UUID, at: dt.datetime, inbox: dict[uuid.UUID, ProcessedEvent]) -> Node:
    """Return the node of another service's event, which the inbox may have deleted by now."""
    if (row := inbox.get(id)) is None:
        return Node(f"Event of another service, no longer in the inbox [{id}]", at)
    times = f", received {row.receive_count} times" if row.receive_count > 1 else ""
    return Node(
        f"Event {row.event_type} of {row.source} taken by {row.consumer}{times} [{id}]", row.processed_at
    )
