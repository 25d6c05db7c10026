"""Events out: each at least once, in order for each aggregate, whatever fails and however many relays run."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections import defaultdict

import pytest
import redis
from django.db import connections, transaction
from django.db.models.functions import Now

from orders.services import complete_order, pay_order, place_order
from outbox.events import relay
from outbox.events.publish import publish_event
from outbox.events.relay import Relay
from outbox.events.transports import BrokerAway, Message, Publisher, Refused
from outbox.events.transports.redis import Publisher as Streams
from outbox.models import OutboxEvent
from tests.outbox.months import dsn

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct"])


class Memory(Publisher):
    """A broker in memory, told whom to refuse and when to be away."""

    def __init__(self) -> None:
        self.taken: list[Message] = []
        self.refuse: dict[str, str] = {}
        self.away = 0

    def publish(self, messages):
        if self.away:
            self.away -= 1
            raise BrokerAway("gone")
        answers = []
        for message in messages:
            reason = next((why for part, why in self.refuse.items() if part.encode() in message.value), None)
            answers.append(Refused(reason) if reason else None)
            if not reason:
                self.taken.append(message)
        return answers

    def close(self) -> None:
        pass

    def texts(self) -> list[str]:
        return [json.loads(message.value)["data"]["text"] for message in self.taken]


@pytest.fixture
def broker() -> Memory:
    return Memory()


@pytest.fixture
def one(broker):
    made = Relay(using="default", transport=broker)
    yield made
    made.close()


def write(aggregate: uuid.UUID, *texts: str, topic: str = "test.v1") -> None:
    with transaction.atomic():
        for number, text in enumerate(texts):
            publish_event(
                aggregate_type="test",
                aggregate_id=aggregate,
                event_type=topic,
                sequence=number + 1,
                payload={"text": text},
            )


def unpublished() -> int:
    return OutboxEvent.objects.filter(published_at=None).count()


def due() -> None:
    OutboxEvent.objects.filter(published_at=None).update(next_attempt_at=Now() - dt.timedelta(seconds=1))


def test_an_orders_events_go_out_in_order_in_seed_2s_envelope(one, broker):
    order = place_order(user_id=uuid.uuid4(), email="a@example.com", name="Ann", total_amount=500)
    pay_order(order_id=order.id)
    complete_order(order_id=order.id)
    assert one.step() == 3 and unpublished() == 0 and one.step() == 0
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


def test_what_is_refused_holds_back_its_own_aggregate_and_nobody_elses(one, broker):
    bad, good = uuid.uuid4(), uuid.uuid4()
    write(bad, "b1", "poison", "b3")
    write(good, "g1", "g2")
    broker.refuse["poison"] = "not this"
    one.step()
    assert sorted(broker.texts()) == ["b1", "g1", "g2"]
    assert one.step() == 0  # b3 waits behind it, and so does it
    event = OutboxEvent.objects.get(payload={"text": "poison"})
    assert (event.retry_count, event.last_error) == (1, "not this")
    broker.refuse.clear()
    due()
    one.step()
    assert broker.texts()[-2:] == ["poison", "b3"]


def test_an_events_own_fault_dead_letters_it_after_five_tries_and_a_person_lets_the_rest_go(one, broker):
    bad = uuid.uuid4()
    write(bad, "poison", "after")
    broker.refuse["poison"] = "not this"
    for _ in range(5):
        due()
        one.step()
    event = OutboxEvent.objects.get(payload={"text": "poison"})
    assert event.dead_lettered_at and event.retry_count == 4
    due()
    assert one.step() == 0
    OutboxEvent.objects.filter(id=event.id).update(discarded_at=Now())
    one.step()
    assert broker.texts() == ["after"]


def test_a_limit_can_be_set_for_a_topic(one, broker, settings):
    settings.EVENT_MAX_RETRIES_FOR = {"test.v1": 0}
    write(uuid.uuid4(), "poison")
    broker.refuse["poison"] = "not this"
    one.step()
    assert OutboxEvent.objects.get().dead_lettered_at


def test_a_broker_that_is_away_uses_up_no_retry_and_loses_nothing(one, broker):
    write(uuid.uuid4(), "a", "b", "c")
    broker.away = 7
    for _ in range(7):
        with pytest.raises(BrokerAway):
            one.step()
    assert set(OutboxEvent.objects.values_list("retry_count", "dead_lettered_at")) == {(0, None)}
    one.step()
    assert broker.texts() == ["a", "b", "c"]


def test_an_event_of_a_megabyte_is_refused_and_the_others_go_on(one, broker):
    write(uuid.uuid4(), "x" * 1_000_001, "behind")
    write(uuid.uuid4(), "fine")
    one.step()
    assert broker.texts() == ["fine"]
    assert "bytes" in OutboxEvent.objects.exclude(last_error="").get().last_error


def test_a_held_back_aggregate_with_a_long_queue_does_not_fill_the_batch(one, broker):
    stuck = uuid.uuid4()
    write(stuck, "poison", *(f"s{n}" for n in range(300)))
    broker.refuse["poison"] = "not this"
    one.step(batch=10)
    shard = OutboxEvent.objects.filter(aggregate_id=stuck).first().shard
    other = next(id for id in iter(uuid.uuid4, None) if relay.SHARDS and _shard(id) == shard)
    write(other, "mine")
    one.step(batch=10)
    assert broker.texts() == ["mine"]


def _shard(id: uuid.UUID) -> int:
    from outbox.events.publish import shard_of

    return shard_of(id)


def test_relays_share_the_shards_and_a_dead_ones_move(broker, monkeypatch):
    monkeypatch.setattr(relay, "MEMBERS_SECONDS", 0)
    import psycopg

    first = Relay(using="default", transport=broker)
    first.step()
    assert len(first.shards) == relay.SHARDS
    with psycopg.connect(dsn(), autocommit=True) as other:
        other.execute("INSERT INTO heartbeats (name, beat_at, since) VALUES ('relay:other', now(), now())")
        first.step()
        assert len(first.shards) == relay.SHARDS // 2
        free = set(range(relay.SHARDS)) - first.shards
        for shard in free:
            assert other.execute("SELECT pg_try_advisory_lock(%s, %s)", [relay.LOCK, shard]).fetchone()[0]
        other.execute(
            "UPDATE heartbeats SET beat_at = now() - interval '1 minute' WHERE name = 'relay:other'"
        )
        first.step()
        assert len(first.shards) == relay.SHARDS // 2  # it still holds its locks
    first.step()
    assert len(first.shards) == relay.SHARDS
    first.close()


def test_a_lost_session_has_no_shards(one, broker, monkeypatch):
    monkeypatch.setattr(relay, "MEMBERS_SECONDS", 0)
    one.step()
    connections["default"].close()
    write(uuid.uuid4(), "a")
    one.step()
    assert broker.texts() == ["a"] and len(one.shards) == relay.SHARDS


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


def test_a_redis_that_is_away_is_a_broker_that_is_away(settings):
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    with pytest.raises(BrokerAway):
        Streams().publish([Message("t", "k", b"{}")])


def test_a_batch_is_a_handful_of_statements_and_reads_by_index(one, broker, django_assert_max_num_queries):
    aggregates = [uuid.uuid4() for _ in range(50)]
    for aggregate in aggregates:
        write(aggregate, "1", "2")
    one.step(batch=1)
    with django_assert_max_num_queries(4) as captured:
        one.step()
    assert not [query["sql"] for query in captured if "count(" in query["sql"].lower()]
    by_aggregate = defaultdict(list)
    for message in broker.taken:
        by_aggregate[message.key].append(json.loads(message.value)["data"]["text"])
    assert all(texts == ["1", "2"] for texts in by_aggregate.values()) and len(by_aggregate) == 50
