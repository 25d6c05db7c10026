"""Events out: each at least once, in order for each aggregate, whatever fails and however many relays run.

The floor is where the relay's looks start: past the dead entries of a held snapshot, and never past an event.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import uuid
from collections import defaultdict
from collections.abc import Iterator

import psycopg
import pytest
import redis
from django.db import IntegrityError, connections, transaction
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from events.publishing import shards
from tests.kit.brokers import Memory, due, write
from tests.kit.fast import Fast
from tests.kit.months import dsn
from tests.kit.orders import complete_order, make_order, pay_order, place_order
from tests.kit.waiting import until
from tests.kit.words import (
    SHARDS,
    BrokerAway,
    DomainEvent,
    Message,
    Relay,
    TopicUnavailable,
    attached,
    pause_watch,
    relay,
    shard_of,
)
from tests.kit.words import RedisPublisher as Streams

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct"])


@pytest.fixture
def broker() -> Memory:
    return Memory()


@pytest.fixture
def single_relay(broker):
    made = Relay(using="default", transport=broker)
    yield made
    made.close()


def unpublished() -> int:
    return DomainEvent.objects.filter(published_at=None).count()


def test_an_orders_events_go_out_in_order_in_their_envelope(single_relay, broker):
    order = place_order(user_id=uuid.uuid4(), email="a@example.com", name="Ann", total_amount=500)
    pay_order(order_id=order.id)
    complete_order(order_id=order.id)
    assert single_relay.step() == 3 and unpublished() == 0 and single_relay.step() == 0
    first, *rest = [json.loads(message.value) for message in broker.taken]
    assert set(first) == {"eventId", "timestamp", "eventType", "version", "source", "data", "metadata"}
    assert set(first["metadata"]) == {"traceId", "correlationId", "idempotencyKey", "userId", "sequence"}
    assert (first["eventType"], first["version"], first["source"]) == (
        "order.order.placed.v1",
        1,
        "order-service",
    )
    assert first["timestamp"].endswith("Z") and dt.datetime.fromisoformat(first["timestamp"])
    assert [one_["metadata"]["sequence"] for one_ in (first, *rest)] == [1, 2, 3]
    assert {message.key for message in broker.taken} == {str(order.id)}
    assert [message.topic for message in broker.taken] == [event["eventType"] for event in (first, *rest)]
    assert "Ann" not in str(broker.taken) and "a@example.com" not in str(broker.taken)


def test_a_reason_that_postgresql_cannot_store_is_kept_without_those_characters(single_relay, broker):
    write(uuid.uuid4(), "poison")
    broker.refuse["poison"] = "not \ud800 this\x00"
    single_relay.step()
    assert DomainEvent.objects.get().last_error == "not ? this"


def test_what_is_refused_holds_back_its_own_aggregate_and_nobody_elses(single_relay, broker):
    bad, good = uuid.uuid4(), uuid.uuid4()
    write(bad, "b1", "poison", "b3")
    write(good, "g1", "g2")
    broker.refuse["poison"] = "not this"
    single_relay.step()
    assert sorted(broker.texts()) == ["b1", "g1", "g2"]
    assert single_relay.step() == 0  # b3 waits behind it, and so does it
    event = DomainEvent.objects.get(payload={"text": "poison"})
    assert (event.retry_count, event.last_error) == (1, "not this")
    broker.refuse.clear()
    due()
    single_relay.step()
    assert broker.texts()[-2:] == ["poison", "b3"]


def test_an_events_own_fault_dead_letters_it_after_five_tries_and_an_operator_lets_the_rest_go(
    single_relay, broker
):
    bad = uuid.uuid4()
    write(bad, "poison", "after")
    broker.refuse["poison"] = "not this"
    for _ in range(5):
        due()
        single_relay.step()
    event = DomainEvent.objects.get(payload={"text": "poison"})
    assert event.dead_lettered_at and event.retry_count == 4
    due()
    assert single_relay.step() == 0
    DomainEvent.objects.discard(ids=[event.id])
    single_relay.step()
    assert broker.texts() == ["after"]


def test_a_broker_that_is_away_uses_up_no_retry_and_loses_nothing(single_relay, broker):
    write(uuid.uuid4(), "a", "b", "c")
    broker.away = 7
    for _ in range(7):
        with pytest.raises(BrokerAway):
            single_relay.step()
    assert set(DomainEvent.objects.values_list("retry_count", "dead_lettered_at")) == {(0, None)}
    single_relay.step()
    assert broker.texts() == ["a", "b", "c"]


def test_a_topic_that_takes_nothing_holds_back_its_own_events_alone(single_relay, broker, fast):
    fast.retries()
    both, other = uuid.uuid4(), uuid.uuid4()
    write(both, "b1", topic="missing.v1")
    write(both, "b2")
    write(both, "b3", topic="missing.v1")
    write(other, "o1", topic="missing.v1")
    write(other, "o2")
    broker.unavailable = {"missing.v1"}
    single_relay.step()
    assert sorted(broker.texts()) == ["b2", "o2"]
    waiting = DomainEvent.objects.unpublished().order_by("position")
    assert [event.payload["text"] for event in waiting] == ["b1", "b3", "o1"]
    assert waiting[0].last_error == "no such topic"
    assert {(event.retry_count, event.dead_lettered_at) for event in waiting} == {(0, None)}
    broker.unavailable = set()
    until(lambda: not unpublished(), meanwhile=single_relay.step)
    assert [text for text in broker.texts() if text in ("b1", "b3")] == ["b1", "b3"]


def test_a_topic_that_takes_nothing_is_asked_again_only_after_a_wait_that_grows(
    single_relay, broker, monkeypatch
):
    write(uuid.uuid4(), "a", topic="missing.v1")
    broker.unavailable = {"missing.v1"}
    waits, pauses = [], iter([0.0, 0.0, 600.0])
    monkeypatch.setattr(relay, "pause_after", lambda failures: waits.append(failures) or next(pauses))
    for _ in range(5):
        single_relay.step()
    assert waits == [1, 2, 3]


def test_a_topic_of_which_a_part_is_taken_is_tried_again_soon_and_its_other_events_pass(
    single_relay, broker, monkeypatch
):
    """A Kafka topic whose leader of one partition is away."""
    waits: list[int] = []
    monkeypatch.setattr(relay, "pause_after", lambda failures: waits.append(failures) or 0.01)
    publish = broker.publish

    def partly(messages):
        answers = publish(messages)
        stuck = TopicUnavailable("no leader")
        return [
            stuck if b"stuck" in message.value else answer
            for message, answer in zip(messages, answers, strict=True)
        ]

    monkeypatch.setattr(broker, "publish", partly)
    write(uuid.uuid4(), "stuck")
    for text in ("one", "two", "three"):
        write(uuid.uuid4(), text)
        until(lambda: unpublished() == 1, meanwhile=single_relay.step)
    assert len(waits) >= 3 and set(waits) == {1}


def test_what_the_broker_took_before_it_went_away_is_settled(single_relay, broker):
    for text in "abcd":
        write(uuid.uuid4(), text)
    broker.silent_after = 2
    with pytest.raises(BrokerAway):
        single_relay.step()
    assert unpublished() == 2 and len(broker.taken) == 2
    assert set(DomainEvent.objects.values_list("retry_count", flat=True)) == {0}


def test_a_wrongtype_stream_holds_back_its_own_events_alone(valkey_url, settings):
    settings.REDIS_URL = valkey_url
    with redis.Redis.from_url(valkey_url) as client:
        client.set("wrong.v1", "no stream")
        write(uuid.uuid4(), "w", topic="wrong.v1")
        write(uuid.uuid4(), "a", "b")
        made = Relay(using="default", transport=Streams())
        made.step()
        assert client.xlen("test.v1") == 2
        assert "WRONGTYPE" in DomainEvent.objects.unpublished().get().last_error
        made.close()


def test_a_relay_that_cannot_reach_its_broker_hands_its_shards_to_one_that_can(fast):
    fast.shards()
    cut_off, reaches = Memory(), Memory()
    first = Relay(using="default", transport=cut_off)
    second = Relay(using="direct", transport=reaches)
    first.step()
    assert len(first.shards.owned) == SHARDS
    write(uuid.uuid4(), "a")
    cut_off.away = 100
    with pytest.raises(BrokerAway):
        first.step()
    first.hand_over()
    second.step()
    assert len(second.shards.owned) == SHARDS and reaches.texts() == ["a"]
    with pytest.raises(BrokerAway):
        first.step()  # it takes no shards before its broker answers
    second.step()
    assert len(second.shards.owned) == SHARDS
    cut_off.away = 0
    for _ in range(3):
        first.step()
        second.step()
    assert len(first.shards.owned) == len(second.shards.owned) == SHARDS // 2
    first.close()
    second.close()


def test_a_relay_that_starts_without_its_broker_takes_no_shards(broker):
    broker.away = 1
    made = Relay(using="default", transport=broker)
    with pytest.raises(BrokerAway):
        made.step()
    assert not made.shards.owned
    made.close()


def test_an_event_of_a_megabyte_is_refused_and_the_others_go_on(single_relay, broker):
    write(uuid.uuid4(), "x" * 1_000_001, "behind")
    write(uuid.uuid4(), "fine")
    single_relay.step()
    assert broker.texts() == ["fine"]
    assert "bytes" in DomainEvent.objects.exclude(last_error="").get().last_error


def test_a_held_back_aggregate_with_a_long_queue_does_not_fill_the_batch(single_relay, broker):
    stuck = uuid.uuid4()
    write(stuck, "poison", *(f"s{n}" for n in range(300)))
    broker.refuse["poison"] = "not this"
    single_relay.step(batch=10)
    shard = DomainEvent.objects.filter(aggregate_id=stuck).first().shard
    other = next(id for id in iter(uuid.uuid4, None) if shard_of(id) == shard)
    write(other, "mine")
    single_relay.step(batch=10)
    assert broker.texts() == ["mine"]


def test_relays_share_the_shards_and_a_dead_ones_move(broker, fast):
    fast.shards()
    first = Relay(using="default", transport=broker)
    first.step()
    assert len(first.shards.owned) == SHARDS
    with psycopg.connect(dsn(), autocommit=True) as other:
        other.execute("INSERT INTO heartbeats (name, beat_at, since) VALUES ('relay@other', now(), now())")
        first.step()
        assert len(first.shards.owned) == SHARDS // 2
        free = set(range(SHARDS)) - first.shards.owned
        for shard in free:
            assert other.execute("SELECT pg_try_advisory_lock(%s, %s)", [shards.LOCK, shard]).fetchone()[0]
        other.execute(
            "UPDATE heartbeats SET beat_at = now() - interval '1 minute' WHERE name = 'relay@other'"
        )
        first.step()
        assert len(first.shards.owned) == SHARDS // 2  # it still holds its locks

    def has_all() -> bool:
        first.step()
        return len(first.shards.owned) == SHARDS

    until(has_all, "PostgreSQL has freed the locks of the session that ended")
    first.close()


def test_a_lost_session_has_no_shards(single_relay, broker, fast):
    fast.shards()
    single_relay.step()
    connections["default"].close()
    write(uuid.uuid4(), "a")
    single_relay.step()
    assert broker.texts() == ["a"] and len(single_relay.shards.owned) == SHARDS


def test_redis_streams_get_key_and_envelope_and_are_trimmed(valkey_url, settings):
    settings.REDIS_URL, settings.EVENT_STREAM_LENGTH = valkey_url, 100
    aggregate = uuid.uuid4()
    for start in range(0, 1000, 250):
        write(aggregate, *(f"{n}" for n in range(start, start + 250)))
    made = Relay(using="default", transport=Streams())
    while made.step():
        pass
    made.close()
    with redis.Redis.from_url(valkey_url) as client:
        entries = client.xrange("test.v1")
        assert 100 <= len(entries) <= 300
        texts = [int(json.loads(fields[b"value"])["data"]["text"]) for _, fields in entries]
        assert texts == sorted(texts) and texts[-1] == 999
        assert entries[0][1][b"key"] == str(aggregate).encode()


def test_while_a_replica_is_missing_an_event_is_written_to_its_stream_once(valkey_url, settings):
    """Otherwise its repeats push out the events that a slow consumer has not read yet."""
    settings.REDIS_URL = valkey_url
    write(uuid.uuid4(), "before")
    made = Relay(using="default", transport=Streams())
    assert made.step() == 1
    settings.EVENT_REPLICAS = 1
    write(uuid.uuid4(), "after")
    for _ in range(3):
        with pytest.raises(BrokerAway, match="0 of 1 replicas have the events"):
            made.step()
        made.hand_over()
    with redis.Redis.from_url(valkey_url) as client:
        assert client.xlen("test.v1") == 2
    settings.EVENT_REPLICAS = 0
    assert made.step() == 1
    made.close()


def test_a_redis_that_is_away_is_a_broker_that_is_away(settings):
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    with pytest.raises(BrokerAway):
        Streams().publish([Message("t", "k", b"{}")])


def test_a_batch_is_a_handful_of_statements_and_reads_by_index(
    single_relay, broker, django_assert_max_num_queries
):
    single_relay.step()  # takes the shards
    aggregates = [uuid.uuid4() for _ in range(50)]
    for aggregate in aggregates:
        write(aggregate, "1", "2")
    single_relay.shards.keep()  # which looks at its locks now and then
    with django_assert_max_num_queries(4) as captured:
        single_relay.step()
    assert not [query["sql"] for query in captured if "count(" in query["sql"].lower()]
    by_aggregate = defaultdict(list)
    for message in broker.taken:
        by_aggregate[message.key].append(json.loads(message.value)["data"]["text"])
    assert all(texts == ["1", "2"] for texts in by_aggregate.values()) and len(by_aggregate) == 50


@pytest.mark.parametrize(
    "wrong", [{"published_at": Now(), "dead_lettered_at": Now()}, {"discarded_at": Now()}]
)
def test_a_state_that_cannot_be_is_refused_by_the_table(wrong):
    write(uuid.uuid4(), "a")
    with pytest.raises(IntegrityError):
        DomainEvent.objects.update(**wrong)


def test_the_relay_reads_its_indexes(single_relay):
    with transaction.atomic(), connections["default"].cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        blocking, due = plans_of_a_look(single_relay)
    assert "outbox_events_stuck" in indexes_of(blocking) and "outbox_events_next" in indexes_of(due)


def test_what_blocks_and_what_is_due_are_the_states_of_these_names(single_relay):
    now = dt.datetime.now(dt.UTC)
    soon = now + dt.timedelta(hours=1)
    for fields in (
        {},
        {"retry_count": 2},
        {"retry_count": 2, "next_attempt_at": soon},
        {"next_attempt_at": soon},
        {"retry_count": 4, "dead_lettered_at": now},
        {"dead_lettered_at": now},
        {"dead_lettered_at": now, "discarded_at": now},
        {"published_at": now},
        {"published_at": now, "retry_count": 2, "next_attempt_at": soon},
    ):
        write(uuid.uuid4(), "a")
        DomainEvent.objects.filter(id=DomainEvent.objects.latest("position").id).update(**fields)
    events, every = DomainEvent.objects.all(), {"shards": range(SHARDS), "now": now}
    blocking = events.blocking(**every)
    assert sorted(blocking) == sorted(events.blocked().values_list("aggregate_id", flat=True))
    everything = {**every, "since": 0, "limit": 100}
    due = events.due(**everything, without=[], held=[])
    assert [event.id for event in due] == [event.id for event in events.unpublished().outgoing()] and due
    assert due == list(events.unpublished().outgoing())
    assert not events.due(**everything, without=[], held=["test.v1"])
    others = events.due(**everything, without=blocking, held=[])
    assert others and not {other.aggregate_id for other in others} & set(blocking)


def test_the_relay_plans_no_partition_of_days_to_come(single_relay, broker):
    write(uuid.uuid4(), "1")
    far = attached(model=DomainEvent)[-1]
    assert far.since - dt.datetime.now(dt.UTC) > dt.timedelta(days=4)
    for plan in plans_of_a_look(single_relay):
        assert far.name not in plan and attached(model=DomainEvent)[1].name in plan
    assert broker.texts() == ["1"]


def plans_of_a_look(relay: Relay) -> list[str]:
    """Return the plans of what blocks and of what is due."""
    with CaptureQueriesContext(connections["default"]) as looked:
        relay.step()
    blocking, due = [query["sql"] for query in looked if "FROM outbox_events" in query["sql"]][:2]
    with connections["default"].cursor() as cursor:
        plans = []
        for statement in (blocking, due):
            cursor.execute(f"EXPLAIN {statement}")
            plans.append("\n".join(line for (line,) in cursor.fetchall()))
    return plans


def indexes_of(plan: str) -> set[str]:
    """Return the parent indexes of the partitions' indexes in a plan."""
    with connections["default"].cursor() as cursor:
        cursor.execute(
            "SELECT inhrelid::regclass::text, inhparent::regclass::text FROM pg_inherits"
            " JOIN pg_index ON indexrelid = inhrelid"
        )
        return {parent for child, parent in cursor.fetchall() if child in plan}


@pytest.fixture
def quick(single_relay: Relay, fast: Fast) -> Relay:
    """Let the floor of the relay follow at each step."""
    fast.floor()
    return single_relay


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
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes"
            " WHERE relname LIKE 'outbox_events%' AND indexrelname LIKE '%position%'"
        )
        return int(cursor.fetchone()[0] or 0)


def entries_of_a_step(relay: Relay) -> int:
    before = entries_read()
    relay.step()
    return entries_read() - before


def follow(relay: Relay) -> None:
    """Relay often enough for the floor to follow, if it may."""
    for _ in range(4):
        relay.step()


def test_a_look_steps_over_few_dead_entries_however_many_were_published_under_a_held_snapshot(quick, broker):
    with psycopg.connect(dsn()) as holder:
        holder.execute("SET idle_in_transaction_session_timeout = 0")
        holder.commit()
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM outbox_events")
        write(uuid.uuid4(), *map(str, range(500)))
        while DomainEvent.objects.unpublished().exists():
            quick.step()
        until(lambda: entries_of_a_step(quick) < 20)  # transactions of other databases count, too
        write(uuid.uuid4(), "new")
        assert entries_of_a_step(quick) < 20
        assert broker.texts()[-1] == "new"
        quick.hand_over()  # which forgets the floor
        write(uuid.uuid4(), "newer")
        assert entries_of_a_step(quick) > 500


def test_the_floor_waits_for_a_transaction_that_got_an_earlier_position(quick, broker, beside):
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
        follow(quick)
    beside.commit()
    write(order.id, "later of the same aggregate")
    quick.step()
    assert broker.texts()[-2:] == ["early", "later of the same aggregate"]


def test_a_look_finds_a_dead_letter_that_is_republished_before_the_later_events_of_its_aggregate(
    quick, broker
):
    aggregate = uuid.uuid4()
    broker.refuse["first"] = "too odd"
    write(aggregate, "first", "second")
    DomainEvent.objects.filter(payload__text="first").update(retry_count=4)
    quick.step()
    dead = DomainEvent.objects.dead().get()
    for number in range(3):
        write(uuid.uuid4(), f"other {number}")
        follow(quick)
    broker.refuse.clear()
    DomainEvent.objects.republish(ids=[dead.id])
    while quick.step():
        pass
    texts = broker.texts()
    assert texts.index("first") < texts.index("second")


def test_an_event_that_waits_for_its_topic_is_found_again(quick, broker, fast):
    fast.retries()
    broker.unavailable = {"gone.v1"}
    write(uuid.uuid4(), "waits", topic="gone.v1")
    for number in range(3):
        write(uuid.uuid4(), f"other {number}")
        follow(quick)
    broker.unavailable.clear()
    until(lambda: "waits" in broker.texts(), meanwhile=quick.step)


def test_what_was_read_ahead_is_forgotten_with_the_shards(quick, broker):
    write(uuid.uuid4(), *map(str, range(8)))
    quick.step(batch=2)
    assert broker.texts() == ["0", "1"]
    quick.hand_over()
    DomainEvent.objects.mark_published(ids=DomainEvent.objects.values_list("id", flat=True))
    assert quick.step(batch=2) == 0


def test_what_was_read_ahead_waits_behind_an_event_that_is_refused(quick, broker):
    aggregate = uuid.uuid4()
    broker.refuse["odd"] = "too odd"
    write(aggregate, "odd", "a", "b", "c", "d")
    write(uuid.uuid4(), "other")
    for _ in range(4):
        quick.step(batch=2)
    assert broker.texts() == ["other"]


def test_a_look_is_shared_by_four_batches(quick, broker, django_assert_num_queries, monkeypatch):
    with transaction.atomic():
        for number in range(8):
            write(uuid.uuid4(), str(number))
    quick.step(batch=2)
    # A slow machine must not add the statements that a relay makes every few seconds.
    monkeypatch.setattr(shards, "KEEP_SECONDS", math.inf)
    monkeypatch.setattr(pause_watch, "SECONDS", math.inf)
    with django_assert_num_queries(3):  # what became of each batch
        for _ in range(3):
            quick.step(batch=2)
    assert len(broker.taken) == 8
