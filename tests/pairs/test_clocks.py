"""The clocks of a web process and of the database are five minutes apart around midnight.

An id has the time of the process that made it, and a partition holds the ids of its day. So the rows of one
order may be in the partition before that of the order's own time.
"""

from __future__ import annotations

import datetime as dt
import uuid

import pytest
from django.db.models.functions import Now

from tests.kit.months import Steps, make_partition, states
from tests.kit.people import grep
from tests.kit.words import (
    DomainEvent,
    Order,
    Partition,
    erase_person,
    export_person,
    id_floor,
    read_timeline,
    rollover,
)

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"]),
    pytest.mark.usefixtures("archive_folder"),
]
ADDRESS, LINK = "ann@example.com", "https://track.example/ann"
FIVE_MINUTES = dt.timedelta(minutes=5)


def an_id(when: dt.datetime) -> uuid.UUID:
    return uuid.UUID(int=id_floor(when).int | 7 << 76 | 2 << 62 | uuid.uuid4().int >> 66)


def order_of(day: Partition, *, by_a_late_clock: bool) -> Order:
    """Write an order whose events are in the partition `day`, and its own time after the end of that day.

    With `by_a_late_clock`, the process that placed it is five minutes late. Otherwise that process is five
    minutes early, and another one wrote the event.
    """
    placed_at = day.until + dt.timedelta(minutes=2) if by_a_late_clock else day.until - FIVE_MINUTES / 2
    own = placed_at + (-FIVE_MINUTES if by_a_late_clock else FIVE_MINUTES)
    order = Order.objects.create(
        id=an_id(own),
        user_id=uuid.uuid4(),
        email=ADDRESS,
        total_amount=500,
        status="completed",
        correlation_id="work",
        created_at=placed_at,
        updated_at=placed_at,
        paid_at=placed_at,
        completed_at=placed_at,
    )
    DomainEvent.objects.create(
        id=an_id(own if by_a_late_clock else placed_at),
        created_at=placed_at,
        published_at=Now(),
        aggregate_type="order",
        aggregate_id=order.id,
        event_type="order.order.completed.v1",
        sequence=3,
        payload={"orderId": str(order.id), "trackingUrl": LINK},
        metadata={"correlationId": "work"},
        shard=1,
    )
    return order


def retire(day: Partition) -> None:
    rollover.rollover(report=Steps())
    assert states(DomainEvent)[day.name] == "detached"


@pytest.mark.parametrize("late", [True, False])
def test_an_erasure_and_an_export_find_the_events_of_the_day_before(late):
    day = make_partition(DomainEvent, back=12)
    order_of(day, by_a_late_clock=late)
    retire(day)
    (event,) = export_person(email=ADDRESS, report=Steps())["outbox_events"]
    assert LINK in str(event)
    erase_person(email=ADDRESS, report=Steps())
    assert grep(LINK) == []


def test_a_timeline_has_the_events_of_the_day_before():
    day = make_partition(DomainEvent, back=12)
    order = order_of(day, by_a_late_clock=True)
    retire(day)
    assert [entry.what for entry in read_timeline(order=order) if entry.event_id] != []
