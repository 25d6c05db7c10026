"""Two versions of an event are taken side by side, each by its handler, and a fact in both counts once."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

import pytest

from tests.kit.brokers import Hand
from tests.kit.events import PAID, envelope, order, received
from tests.kit.words import HANDLERS, NAME, Envelope, EventConsumer, InboundDeadLetter, Order, Rejected

pytestmark = pytest.mark.django_db(transaction=True)
PAID_V2 = "payment.payment.succeeded.v2"


def paid_v2(event: Envelope) -> None:
    """Take the second version, which has the order in an object of its own."""
    try:
        HANDLERS[PAID](Envelope(event.id, PAID, 1, event.source, {"orderId": event.data["order"]["id"]}, {}))
    except KeyError as error:
        raise Rejected("its data.order.id is missing") from error


BOTH = HANDLERS | {PAID_V2: paid_v2}


def v1(id: uuid.UUID, **more: Any) -> Any:
    return received(PAID, envelope(PAID, {"orderId": str(id)}, **more))


def v2(id: uuid.UUID, **more: Any) -> Any:
    return received(PAID_V2, envelope(PAID_V2, {"order": {"id": str(id)}}, version=2, **more))


def consume(*messages: Any) -> dict[str, int]:
    hand = Hand(list(messages))
    consumer = EventConsumer(connect=lambda: hand, name=NAME, handlers=BOTH)
    consumer.step(seconds=0.01)
    counts: dict[str, int] = {name: count for name, count in consumer.counts.items() if count}
    consumer.disconnect()
    return counts


def test_each_version_has_its_handler():
    one, two = order(), order()
    assert consume(v1(one.id), v2(two.id)) == {"done": 2}
    assert set(Order.objects.values_list("status", flat=True)) == {"paid"}


@pytest.mark.parametrize("arrival", list(itertools.permutations("112")))
def test_a_fact_that_is_published_in_both_versions_has_its_effect_once(arrival):
    it, event_id = order(), str(uuid.uuid4())
    versions = {"1": v1(it.id, eventId=event_id), "2": v2(it.id, eventId=event_id)}
    assert consume(*(versions[number] for number in arrival)) == {"done": 1, "repeat": 2}
    assert Order.objects.get().version == 2
    assert not InboundDeadLetter.objects.exists()


def test_a_version_that_its_topic_does_not_have_is_a_dead_letter():
    it = order()
    assert consume(received(PAID_V2, envelope(PAID_V2, {"order": {"id": str(it.id)}}))) == {"dead": 1}
    assert "its version is not" in InboundDeadLetter.objects.get().error
