"""Where the relay's looks start: past the dead entries of a held snapshot, and never past an event."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest
from django.db import connection, transaction

from outbox.events.publishing import floor as module
from tests.kit.brokers import Memory, write
from tests.kit.months import dsn
from tests.kit.orders import make_order
from tests.kit.waiting import until
from tests.kit.words import OutboxEvent, Relay

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct"])


@pytest.fixture
def broker() -> Memory:
    return Memory()


@pytest.fixture
def relay(broker, monkeypatch) -> Iterator[Relay]:
    monkeypatch.setattr(module, "TICK_SECONDS", 0.0)
    made = Relay(using="default", transport=broker)
    yield made
    made.close()


@pytest.fixture
def beside() -> Iterator[psycopg.Connection]:
    """Open a second session whose transaction has an id, as after its first change."""
    with psycopg.connect(dsn()) as session:
        session.execute("SET idle_in_transaction_session_timeout = 0")
        session.commit()
        session.execute("SELECT pg_current_xact_id()")
        yield session


def entries_read() -> int:
    """Return how many entries of the index of unpublished events were read so far, dead ones included."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes"
            " WHERE relname LIKE 'outbox_events%' AND indexrelname LIKE '%position%'"
        )
        return int(cursor.fetchone()[0] or 0)


def settle_floor(relay: Relay) -> None:
    """Relay often enough for the floor to follow, if it may."""
    for _ in range(4):
        relay.step()


def rise(relay: Relay) -> None:
    """Relay until the floor has followed: transactions of other databases count, too."""
    last = OutboxEvent.objects.latest("position").position
    until(lambda: relay._floor.position == last + 1, meanwhile=relay.step)


def test_steps_over_few_dead_entries_however_many_were_published_under_a_held_snapshot(relay, broker):
    with psycopg.connect(dsn()) as holder:
        holder.execute("SET idle_in_transaction_session_timeout = 0")
        holder.commit()
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM outbox_events")
        write(uuid.uuid4(), *map(str, range(500)))
        while OutboxEvent.objects.unpublished().exists():
            relay.step()
        rise(relay)
        before = entries_read()
        write(uuid.uuid4(), "new")
        relay.step()
        assert broker.texts()[-1] == "new"
        assert entries_read() - before < 20
        relay._floor.reset()
        write(uuid.uuid4(), "newer")
        relay.step()
        assert entries_read() - before > 500  # what every look would read


def test_waits_for_a_transaction_that_got_an_earlier_position(relay, broker, beside):
    order = make_order()
    beside.execute(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, version, sequence,"
        " payload, metadata, shard, retry_count, last_error)"
        " SELECT overlay(gen_random_uuid()::text placing left(%s, 13) from 1 for 13)::uuid, 'order', %s,"
        " 'test.v1', 1, 1, '{\"text\": \"early\"}', '{}', 1, 0, ''",
        [str(order.id), order.id],
    )
    for number in range(6):
        write(uuid.uuid4(), f"late {number}")
        settle_floor(relay)
    assert relay._floor.position <= OutboxEvent.objects.order_by("position").first().position
    beside.commit()
    write(order.id, "later of the same aggregate")
    relay.step()
    assert broker.texts()[-2:] == ["early", "later of the same aggregate"]


def test_rises_once_every_transaction_of_its_time_has_ended(relay, beside):
    write(uuid.uuid4(), "1", "2")
    settle_floor(relay)
    assert relay._floor.position == 0
    beside.commit()
    rise(relay)


def test_finds_a_dead_letter_that_is_republished_before_the_later_events_of_its_aggregate(relay, broker):
    aggregate = uuid.uuid4()
    broker.refuse["first"] = "too odd"
    write(aggregate, "first", "second")
    OutboxEvent.objects.filter(payload__text="first").update(retry_count=4)
    relay.step()
    dead = OutboxEvent.objects.dead().get()
    for number in range(3):
        write(uuid.uuid4(), f"other {number}")
        settle_floor(relay)
    broker.refuse.clear()
    OutboxEvent.objects.republish(ids=[dead.id])
    while relay.step():
        pass
    texts = broker.texts()
    assert texts.index("first") < texts.index("second")


def test_an_event_that_waits_for_its_topic_is_found_again(relay, broker, monkeypatch):
    monkeypatch.setattr("outbox.events.publishing.relay.pause_after", lambda failures: 0.0)
    broker.unavailable = {"gone.v1"}
    write(uuid.uuid4(), "waits", topic="gone.v1")
    for number in range(3):
        write(uuid.uuid4(), f"other {number}")
        settle_floor(relay)
    broker.unavailable.clear()
    relay.step()
    assert "waits" in broker.texts()


def test_what_was_read_ahead_is_forgotten_with_the_shards(relay, broker):
    write(uuid.uuid4(), *map(str, range(8)))
    relay.step(batch=2)
    assert broker.texts() == ["0", "1"]
    relay.hand_over()
    OutboxEvent.objects.mark_published(ids=OutboxEvent.objects.values_list("id", flat=True))
    assert relay.step(batch=2) == 0


def test_what_was_read_ahead_waits_behind_an_event_that_is_refused(relay, broker):
    aggregate = uuid.uuid4()
    broker.refuse["odd"] = "too odd"
    write(aggregate, "odd", "a", "b", "c", "d")
    write(uuid.uuid4(), "other")
    for _ in range(4):
        relay.step(batch=2)
    assert broker.texts() == ["other"]


def test_a_look_is_shared_by_four_batches(relay, broker, django_assert_num_queries):
    with transaction.atomic():
        for number in range(8):
            write(uuid.uuid4(), str(number))
    relay.step(batch=2)
    with django_assert_num_queries(3):  # what became of each batch
        for _ in range(3):
            relay.step(batch=2)
    assert len(broker.taken) == 8
