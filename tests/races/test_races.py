"""Races of the relay and of beat. test_claims has those for e-mails, test_order_changes those for orders."""

from __future__ import annotations

import threading
import uuid

import pytest
from django.db import connections, transaction
from django_celery_beat.models import PeriodicTask

from config.beat import Scheduler, install_schedule, schedule
from tests.kit.brokers import Memory
from tests.kit.races import together
from tests.kit.waiting import PATIENCE
from tests.kit.words import (
    DomainEvent,
    Relay,
    write_event,
)

pytestmark = pytest.mark.django_db(transaction=True)


def event(aggregate: uuid.UUID, sequence: int) -> None:
    write_event(
        aggregate_type="test",
        aggregate_id=aggregate,
        event_type="test.v1",
        sequence=sequence,
        payload={"text": f"{aggregate.hex[:4]} {sequence}"},
    )


def test_an_event_that_commits_late_is_published_though_later_positions_were():
    """A cursor on the sequence would have stepped over it."""
    broker = Memory()
    relay = Relay(using="default", transport=broker)
    written, commit = threading.Event(), threading.Event()
    slow = uuid.uuid4()

    def writer() -> None:
        try:
            with transaction.atomic():
                event(slow, 1)
                written.set()
                assert commit.wait(PATIENCE)
        finally:
            connections.close_all()

    thread = threading.Thread(target=writer)
    thread.start()
    try:
        assert written.wait(PATIENCE)
        with transaction.atomic():
            event(uuid.uuid4(), 1)
        relay.step()
        assert len(broker.taken) == 1
    finally:
        commit.set()
        thread.join()
    relay.step()
    relay.close()
    assert len(broker.taken) == 2 and broker.taken[1].key == str(slow)
    assert DomainEvent.objects.filter(published_at=None).count() == 0


@pytest.mark.django_db(transaction=True, databases=["default", "direct"])
def test_beats_that_start_at_once_on_an_empty_database_both_start():
    """Found by tests/flows: the second met the first's half-written schedule."""
    for _ in range(5):
        PeriodicTask.objects.all().delete()
        together(4, lambda _: Scheduler.setup_schedule(object.__new__(Scheduler)))
        assert PeriodicTask.objects.count() == len(schedule())
    install_schedule()
    assert PeriodicTask.objects.count() == len(schedule())
