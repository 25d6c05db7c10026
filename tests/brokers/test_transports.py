"""The same tests for every broker.

Redis Streams run on a real Valkey, Kafka on a real broker; where there is no Java or Maven, on librdkafka's
mock cluster.
"""

from __future__ import annotations

import datetime as dt
import json
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
import redis
from confluent_kafka import admin
from django.conf import settings

from events.transports import Lag
from tests.kit import kafka as brokers
from tests.kit.brokers import receive
from tests.kit.events import SHOP, new_id, told
from tests.kit.waiting import PATIENCE, until
from tests.kit.words import (
    HANDLERS,
    NAME,
    BrokerAway,
    EmailNotification,
    Message,
    Order,
    TopicUnavailable,
    consumer_lags,
    inbox,
    kafka,
    transports,
)

#: Kafka's timestamps (epoch milliseconds): after the year 9999, before 1970, microseconds.
TIMESTAMPS = [253402300800000, -62135596800001, 2**63 - 1, 1763770000000000]


@pytest.fixture(scope="module")
def cluster(request) -> Iterator[str]:
    """Where a Kafka cluster is."""
    if not brokers.why_not():
        yield request.getfixturevalue("shared_kafka").url
        return
    mock = confluent_kafka.Producer({"bootstrap.servers": "", "test.mock.num.brokers": 1})
    played = mock.list_topics(timeout=PATIENCE).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in played)


@pytest.fixture(params=["redis", "kafka"])
def broker(request, settings, valkey_url, monkeypatch) -> str:
    """Each broker in turn, and how long its groups take to form."""
    settings.EVENT_TRANSPORT = request.param
    settings.REDIS_URL = valkey_url
    if request.param == "kafka":
        settings.KAFKA_BOOTSTRAP_SERVERS = request.getfixturevalue("cluster")
    return str(request.param)


@pytest.fixture
def topic(broker) -> str:
    """Name a topic. A real Kafka makes one some time after its first event, so it is made here."""
    name = f"test.{uuid.uuid4().hex[:8]}.v1"
    if broker == "kafka" and not brokers.why_not():
        client = admin.AdminClient({"bootstrap.servers": settings.KAFKA_BOOTSTRAP_SERVERS})
        client.create_topics([admin.NewTopic(name, 4, 1)])[name].result(PATIENCE)
        until(lambda: has_leaders(name))
    return name


def has_leaders(topic: str) -> bool:
    """Tell whether each partition answers: a broker says that a topic is made before it leads it."""
    asker = confluent_kafka.Consumer(
        {"bootstrap.servers": settings.KAFKA_BOOTSTRAP_SERVERS, "group.id": f"asks-{topic}"}
    )
    try:
        for partition in range(4):
            asker.get_watermark_offsets(confluent_kafka.TopicPartition(topic, partition), timeout=PATIENCE)
    except confluent_kafka.KafkaException:
        return False
    finally:
        asker.close()
    return True


def publish(topic: str, count: int, *, keys: int = 3) -> None:
    publisher = transports.publisher()
    messages = [Message(topic, str(n % keys), b"%d" % n) for n in range(count)]
    assert publisher.publish(messages) == [None] * count
    publisher.close()


def test_messages_arrive_whole_and_in_order_for_each_key(broker, topic):
    publish(topic, 30)
    consumer = transports.consumer(topics=[topic], group=f"g-{topic}", name="a")
    messages = receive(consumer, 30)
    for key in "012":
        numbers = [int(message.value) for message in messages if message.key == key]
        assert numbers == sorted(numbers) and len(numbers) == 10
    assert {message.topic for message in messages} == {topic}
    consumer.done(messages)
    assert consumer.receive(seconds=0.2) == []
    consumer.close()


def test_what_was_not_acknowledged_comes_again_and_the_rest_does_not(broker, topic):
    publish(topic, 10, keys=1)
    first = transports.consumer(topics=[topic], group=f"g-{topic}", name="a")
    messages = receive(first, 10)
    first.done(messages[:4])
    first.close()
    second = transports.consumer(topics=[topic], group=f"g-{topic}", name="b")
    assert [int(message.value) for message in receive(second, 6)] == [4, 5, 6, 7, 8, 9]
    second.close()


def test_one_that_is_held_back_is_not_lost_when_later_ones_are_acknowledged(broker, topic):
    publish(topic, 5, keys=1)
    first = transports.consumer(topics=[topic], group=f"g-{topic}", name="a")
    messages = receive(first, 5)
    first.done([messages[0], *messages[2:]])  # the second waits for its retry, and the process dies
    first.close()
    second = transports.consumer(topics=[topic], group=f"g-{topic}", name="b")
    assert int(receive(second, 1 if broker == "redis" else 4)[0].value) == 1
    second.close()


def test_two_groups_each_get_everything(broker, topic):
    publish(topic, 3)
    for group in ("one", "two"):
        consumer = transports.consumer(topics=[topic], group=f"{group}-{topic}", name="a")
        consumer.done(receive(consumer, 3))
        consumer.close()


def test_a_broker_that_is_not_there_says_so(broker, topic, settings, fast):
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    settings.KAFKA_BOOTSTRAP_SERVERS = "127.0.0.1:1"
    fast.kafka()
    publisher = transports.publisher()
    with pytest.raises(BrokerAway):
        publisher.check()
    with pytest.raises(BrokerAway):
        publisher.publish([Message(topic, "k", b"x")])
    publisher.close()


def test_a_broker_that_is_there_says_so(broker):
    publisher = transports.publisher()
    publisher.check()
    publisher.close()


def test_a_topic_that_takes_nothing_is_unavailable_and_the_others_get_theirs(broker, topic, monkeypatch):
    """Redis: a key of another type. Kafka: a topic that is missing, and nobody makes it."""
    monkeypatch.setitem(kafka.PRODUCER, "allow.auto.create.topics", False)
    if broker == "redis":
        with redis.Redis.from_url(settings.REDIS_URL) as client:
            client.set(f"wrong.{topic}", "no stream")
    else:
        confluent_kafka.Producer({"bootstrap.servers": settings.KAFKA_BOOTSTRAP_SERVERS}).list_topics(topic)
    publisher = transports.publisher()
    for _ in range(2):
        first, wrong, last = publisher.publish(
            [Message(name, "k", b"x") for name in (topic, f"wrong.{topic}", topic)]
        )
        assert first is last is None
        assert isinstance(wrong, TopicUnavailable) and wrong.reason
    publisher.close()


def test_what_the_broker_said_when_it_was_written_comes_with_a_message(broker, topic):
    publish(topic, 1)
    consumer = transports.consumer(topics=[topic], group=f"g-{topic}", name="a")
    (message,) = receive(consumer, 1)
    assert message.written_at and abs(dt.datetime.now(dt.UTC) - message.written_at) < dt.timedelta(minutes=5)
    consumer.close()


@pytest.mark.django_db(transaction=True)
def test_what_another_system_reports_with_unusable_values_becomes_its_order(broker, topic, settings):
    settings.ORDER_SOURCES, settings.FAST_PATH = [SHOP], False
    odd = {"email": "a..b@docomo.ne.jp", "locale": "?", "currency": "HRK", "totalAmount": 0}
    odd |= {"name": "N" * 201, "items": "tea", "placedAt": "2999-01-01T00:00:00Z", "userId": 42}
    reports = [told("paid", new_id(), 1), told("paid", new_id(), 1, **odd), told("paid", new_id(), 1)]
    publisher = transports.publisher()
    values = [json.dumps(report | {"eventType": topic}).encode() for report in reports]
    assert publisher.publish([Message(topic, "k", value) for value in values]) == [None] * 3
    publisher.close()
    consumer = transports.consumer(topics=[topic], group=f"g-{topic}", name="a")
    messages = receive(consumer, 3)
    consumer.done(messages)
    consumer.close()
    paid = HANDLERS["order.order.paid.v1"]
    for message in messages:
        opened = inbox.open_message(message)
        assert inbox.process(opened, consumer=NAME, handlers={topic: paid}) == "done"
    ids = [report["data"]["orderId"] for report in reports]
    rows = Order.objects.in_bulk(ids)
    orders = [rows[uuid.UUID(id)] for id in ids]
    assert [len(order.warnings) for order in orders] == [0, 6, 0]
    assert [order.email for order in orders] == ["ann@example.com", "", "ann@example.com"]
    assert [email.status for email in EmailNotification.objects.order_by("id")] == [
        *("pending", "dead_lettered", "pending"),
    ]


@pytest.fixture
def kafka_topic(settings, shared_kafka) -> str:
    """Make a topic whose producers may choose any timestamp."""
    settings.EVENT_TRANSPORT, settings.KAFKA_BOOTSTRAP_SERVERS = "kafka", shared_kafka.url
    name = f"test.{uuid.uuid4().hex[:8]}.v1"
    most = str(2**63 - 1)
    config = {"message.timestamp.after.max.ms": most, "message.timestamp.before.max.ms": most}
    client = admin.AdminClient({"bootstrap.servers": shared_kafka.url})
    client.create_topics([admin.NewTopic(name, 1, 1, config=config)])[name].result(PATIENCE)
    return name


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
    messages = receive(consumer, count)
    consumer.close()
    assert len(messages) == count and messages[-1].written_at is not None
    assert [message.written_at for message in messages[:-1]] == [None] * (count - 1)
    (lag,) = consumer_lags(topics=[kafka_topic], group="g")
    assert lag.events == count and lag.seconds >= 0


def lag_of(topic: str) -> Lag:
    """Return how far the topic's group is behind."""
    return consumer_lags(topics=[topic], group=f"g-{topic}")[0]


def test_the_lag_is_what_the_group_has_not_acknowledged(broker, topic):
    assert lag_of(topic) == (topic, 0, 0.0)  # nobody has written to it
    publish(topic, 5, keys=1)
    time.sleep(0.01)
    before = lag_of(topic)  # nobody has ever consumed
    assert before.events == 5 and before.seconds > 0
    consumer = transports.consumer(topics=[topic], group=f"g-{topic}", name="a")
    messages = receive(consumer, 5)
    consumer.done(messages[:2])
    between = lag_of(topic)
    assert between.events == 3 and between.seconds > 0
    consumer.done(messages[2:])
    assert lag_of(topic) == (topic, 0, 0.0)
    consumer.close()
    publish(topic, 1, keys=1)
    assert lag_of(topic).events == 1  # also while no consumer runs


def test_the_lag_of_a_group_is_measured_again_over_the_same_connection_and_reads_no_message_twice(
    broker, topic, monkeypatch
):
    calls: Counter[str] = Counter()

    class Counting(confluent_kafka.Consumer):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            calls["connected"] += 1
            super().__init__(*arguments, **more)

        def assign(self, *arguments: Any) -> None:
            calls["read"] += 1
            super().assign(*arguments)

    monkeypatch.setattr(confluent_kafka, "Consumer", Counting)
    publish(topic, 2, keys=1)
    groups = [f"g-{topic}", f"h-{topic}"]
    for _ in range(3):
        lags = [lag for group in groups for lag in consumer_lags(topics=[topic], group=group)]
        assert [lag.events for lag in lags] == [2, 2] and all(lag.seconds > 0 for lag in lags)
    assert calls == ({"connected": 2, "read": 2} if broker == "kafka" else {})


def test_the_lag_at_a_broker_that_is_not_there_is_unknown(broker, topic, settings, monkeypatch):
    settings.REDIS_URL, settings.KAFKA_BOOTSTRAP_SERVERS = "redis://127.0.0.1:1/0", "127.0.0.1:1"
    with pytest.raises(BrokerAway):
        lag_of(topic)
