"""A pause, and what else changes the e-mails and events that wait for its end."""

from __future__ import annotations

import datetime as dt
import uuid

import pytest
from django.db.models.functions import Now

from runtime.audit import Actor
from tests.kit.brokers import Hand, Memory, consume
from tests.kit.events import dead_refund, order, refunded
from tests.kit.mails import statuses
from tests.kit.months import Steps, make_partition, states
from tests.kit.orders import pay_order
from tests.kit.words import (
    DomainEvent,
    InboundDeadLetter,
    Relay,
    claim,
    erase_person,
    id_floor,
    new_id,
    pauses,
    rollover,
)

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])


def test_an_email_that_waits_for_the_end_of_a_pause_is_not_sent_after_its_person_was_erased(archive_folder):
    placed = order()
    pay_order(order_id=placed.id)
    pauses.pause(parts=["delivery"], reason="", by=Actor("x"))
    erase_person(email=placed.email, report=Steps(), force=True)
    pauses.resume(parts=["delivery"], by=Actor("x"))
    assert claim(limit=5) == []
    assert statuses() == {"discarded": 1}


def test_a_day_of_events_stays_attached_until_a_paused_relay_has_published_them(archive_folder, fast):
    fast.pauses()
    old, broker = make_partition(DomainEvent, back=12), Memory()
    event = {"aggregate_type": "t", "aggregate_id": new_id(), "event_type": "t.v1", "shard": 1}
    when = old.since + dt.timedelta(hours=1)
    id = uuid.UUID(int=id_floor(when).int | 7 << 76 | 2 << 62)
    DomainEvent.objects.create(id=id, created_at=when, sequence=1, payload={"text": "old"}, **event)
    pauses.pause(parts=["relay"], reason="", by=Actor("x"))
    relay = Relay(using="default", transport=broker)
    try:
        assert relay.step() == 0
        assert [held.partition for held in rollover.rollover(report=Steps()).held] == [old.name]
        pauses.resume(parts=["relay"], by=Actor("x"))
        assert relay.step() == 1 and broker.texts() == ["old"]
    finally:
        relay.close()
    assert not rollover.rollover(report=Steps()).held
    assert states(DomainEvent)[old.name] == "detached"


def test_a_replay_that_waits_for_paused_consumers_outlives_the_days_of_its_letter(settings, fast):
    fast.pauses()
    it, letter = dead_refund()
    pauses.pause(parts=["consumers"], reason="", by=Actor("x"))
    InboundDeadLetter.objects.request_replay(ids=[letter.id])
    old = Now() - dt.timedelta(days=InboundDeadLetter.KEPT_DAYS + 1)
    InboundDeadLetter.objects.update(failed_at=old)
    consumer = consume(Hand())
    consumer.step(seconds=0.01)
    rollover.rollover(report=Steps())
    assert refunded(it) == 0
    pauses.resume(parts=["consumers"], by=Actor("x"))
    consumer.step(seconds=0.01)
    assert refunded(it) == 10
    rollover.rollover(report=Steps())
    assert not InboundDeadLetter.objects.exists()
