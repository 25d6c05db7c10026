"""An id or a timestamp that is not a time stops nothing: the event is processed, or becomes a dead letter."""

from __future__ import annotations

import datetime as dt
import json
import time
import uuid
from collections.abc import Callable

import confluent_kafka
import pytest
import redis
from confluent_kafka import admin

from outbox.database.periods import read_time
from outbox.events.consuming.consumer import GROUP
from outbox.events.transports import Consumer
from outbox.events.transports.redis import Consumer as StreamConsumer
from tests.kit.events import PAID, envelope, handle, order, received, status
from tests.kit.waiting import until
from tests.kit.words import (
    HANDLERS,
    NAME,
    EventConsumer,
    InboundDeadLetter,
    Received,
    consumer_lags,
    id_time,
    transports,
)

LAST = "18446744073709551615-18446744073709551615"
#: Ids of Redis' streams that are not a time of ours.
IDS = ["0-1", "253402300800000-0", "1763770000000000-0", "18446744073709551615-1", LAST]
#: Kafka's timestamps (epoch milliseconds): after the year 9999, before 1970, microseconds.
TIMESTAMPS = [253402300800000, -62135596800001, 2**63 - 1, 1763770000000000]


@pytest.fixture
def stream(settings, valkey_url):
    """Return a client of the broker, which is Valkey."""
    settings.EVENT_TRANSPORT, settings.REDIS_URL = "redis", valkey_url
    with redis.Redis.from_url(valkey_url) as client:
        yield client


def paid(it) -> dict[str, str]:
    """Return the fields of a stream's entry that pays an order."""
    return {"key": str(it.id), "value": json.dumps(envelope(PAID, {"orderId": str(it.id)}))}


def run_until(it: EventConsumer, condition: Callable[[], object]) -> None:
    until(condition, meanwhile=lambda: it.step(seconds=0.05))
    it.disconnect()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("id", IDS)
def test_an_entry_of_any_id_holds_back_no_later_one_and_no_other_topic(stream, id):
    one, later, elsewhere = order(), order(), order()
    other = "payment.payment.refunded.v1"
    stream.xadd(PAID, paid(one), id=id)
    if id != LAST:  # nobody can add an entry behind that one
        stream.xadd(PAID, paid(later))
    refund = envelope(other, {"orderId": str(elsewhere.id)})
    stream.xadd(other, {"key": str(elsewhere.id), "value": json.dumps(refund)})
    it = EventConsumer(
        connect=lambda: transports.consumer(topics=[PAID, other], group=GROUP, name="a"),
        name=NAME,
        handlers=HANDLERS,
    )
    expected = 2 if id == LAST else 3
    run_until(it, lambda: sum(it.counts.values()) >= expected)
    assert sum(it.counts.values()) == expected
    assert stream.xpending(PAID, GROUP)["pending"] == 0
    if id == "0-1":
        assert "it is of 1970-01-01 00:00 UTC" in InboundDeadLetter.objects.get(topic=PAID).error
    else:
        assert status(one) == "paid"
    if id not in (LAST, "0-1"):
        assert status(later) == "paid"
    assert InboundDeadLetter.objects.get(topic=other).error.startswith("An order"), "it was not paid before"


@pytest.mark.parametrize("id", IDS)
def test_the_next_owner_gets_an_unacknowledged_entry_of_any_id_once(stream, id):
    stream.xadd("t.v1", {"key": "k", "value": "0"}, id=id)
    one, two = (StreamConsumer(topics=["t.v1"], group="g", name=name) for name in "ab")
    assert [received.value for received in one.receive(seconds=0.05)] == [b"0"]
    one.close()
    assert [received.value for received in two.receive(seconds=0.05)] == [b"0"]
    assert two.receive(seconds=0.05) == []


@pytest.mark.parametrize("id", IDS)
def test_the_lag_of_a_stream_with_any_id_is_counted(stream, id):
    stream.xadd("t.v1", {"key": "k", "value": "0"}, id=id)
    stream.xadd("u.v1", {"key": "k", "value": "0"})
    for read in (False, True):
        if read:
            StreamConsumer(topics=["t.v1", "u.v1"], group="g", name="a").receive(seconds=0.05)
        found = consumer_lags(topics=["t.v1", "u.v1"], group="g")
        assert [(one.topic, one.events) for one in found] == [("t.v1", 1), ("u.v1", 1)]
        assert all(one.seconds >= 0 for one in found)


@pytest.mark.parametrize(
    ("id", "written_at"),
    [
        ("1763770000000-0", dt.datetime(2025, 11, 22, 0, 6, 40, tzinfo=dt.UTC)),
        ("0-1", dt.datetime(1970, 1, 1, tzinfo=dt.UTC)),
        ("1763770000000000-0", None),
    ],
)
def test_an_id_is_a_time_if_it_can_be_one(stream, id, written_at):
    stream.xadd("t.v1", {"key": "k", "value": "0"}, id=id)
    (found,) = StreamConsumer(topics=["t.v1"], group="g", name="a").receive(seconds=0.05)
    assert found.written_at == written_at


@pytest.fixture
def kafka_topic(settings, shared_kafka) -> str:
    """Make a topic whose producers may choose any timestamp."""
    settings.EVENT_TRANSPORT, settings.KAFKA_BOOTSTRAP_SERVERS = "kafka", shared_kafka.url
    name = f"test.{uuid.uuid4().hex[:8]}.v1"
    most = str(2**63 - 1)
    config = {"message.timestamp.after.max.ms": most, "message.timestamp.before.max.ms": most}
    client = admin.AdminClient({"bootstrap.servers": shared_kafka.url})
    client.create_topics([admin.NewTopic(name, 1, 1, config=config)])[name].result(20)
    return name


def receive_some(consumer: Consumer, count: int) -> list[Received]:
    found: list[Received] = []
    deadline = time.monotonic() + 40
    while len(found) < count and time.monotonic() < deadline:
        found += consumer.receive(seconds=0.5)
    return found


def test_kafka_messages_of_any_timestamp_are_received_and_have_a_lag(kafka_topic, settings):
    producer = confluent_kafka.Producer({"bootstrap.servers": settings.KAFKA_BOOTSTRAP_SERVERS})
    refused: list[str] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            refused.append(str(error))

    for number, timestamp in enumerate([*TIMESTAMPS, 0]):
        producer.produce(kafka_topic, b"%d" % number, timestamp=timestamp, on_delivery=delivered)
        assert producer.flush(20) == 0
    assert not refused
    count = len(TIMESTAMPS) + 1
    consumer = transports.consumer(topics=[kafka_topic], group="g", name="a")
    found = receive_some(consumer, count)
    consumer.close()
    assert len(found) == count and found[-1].written_at is not None
    assert [one.written_at for one in found[:-1]] == [None] * (count - 1)
    (lag,) = consumer_lags(topics=[kafka_topic], group="g")
    assert lag.events == count and lag.seconds >= 0


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("timestamp", "result"),
    [
        ("0001-01-01T00:00:00+14:00", "done"),  # not a year in UTC: as if there were none
        ("9999-12-31T23:59:59-14:00", "done"),
        ("0001-01-01T00:00:00Z", "dead"),  # older than what the inbox remembers
        ("9999-12-31T23:59:59Z", "done"),
        (10**30, "done"),
    ],
)
def test_an_envelope_of_any_timestamp_is_processed_or_a_dead_letter(timestamp, result):
    it = order()
    assert handle(received(PAID, envelope(PAID, {"orderId": str(it.id)}, timestamp=timestamp))) == result


def test_the_time_of_an_id_that_holds_none_is_the_last_one():
    assert id_time(uuid.UUID(int=2**128 - 1)).year == 9999


@pytest.mark.parametrize("text", ["1970-01-01T00:00:00+14:00", "0001-01-01T00:00:00+14:00", "9999-12-31"])
def test_a_period_that_begins_at_no_time_of_an_id_is_not_read(text):
    assert read_time(text) is None
