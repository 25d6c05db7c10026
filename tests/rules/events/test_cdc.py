"""A message on a table's topic wakes what works at that table, and the lag of the group is a metric."""

from __future__ import annotations

import contextlib
import functools
import json
import uuid
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from django.core.management import call_command
from django.db import OperationalError

from outbox.cdc import CDC, RowChangeConsumer
from tests.kit.brokers import Hand
from tests.kit.waiting import PATIENCE
from tests.kit.words import BrokerAway, Heartbeat, Message, Received, cdc, kafka, metrics

MAILS, EVENTS = "orderpost.public.email_notifications", "orderpost.public.outbox_events"
ROW = b'{"id": "0199d0e4-7c00-7000-8000-000000000001"}'


def message(value: bytes = ROW, topic: str = MAILS) -> Received:
    return Received(topic, "k", value, None)


def consumer_of(*brokers: Hand) -> tuple[RowChangeConsumer, list[str]]:
    """Return a consumer that has just joined, and the list of what it wakes from then on."""
    woken: list[str] = []
    tables = ("email_notifications", "outbox_events")
    wakes = {table: functools.partial(woken.append, table) for table in tables}
    it = RowChangeConsumer(connect=iter(brokers).__next__, wakes=wakes)
    broker = brokers[0]
    rounds, broker.rounds = broker.rounds, []
    it.step()
    assert sorted(woken) == sorted(tables)  # whatever was written while nobody listened
    woken.clear()
    broker.rounds = rounds
    return it, woken


def test_a_hundred_changes_wake_each_table_once():
    it, woken = consumer_of(Hand([message()] * 99 + [message(topic=EVENTS)]))
    it.step()
    assert sorted(woken) == ["email_notifications", "outbox_events"]


@pytest.mark.parametrize(
    "value", [b"", b"null", b"{", b"\x00\x00\x00\x00\x01\x02", b"\xff\xfe", b"[" * 100_000]
)
def test_a_message_wakes_whatever_it_contains(value):
    broker = Hand([message(value)])
    it, woken = consumer_of(broker)
    it.step()
    assert woken == ["email_notifications"] and len(broker.acknowledged) == 1


def test_offsets_are_committed_about_once_a_second_and_when_it_leaves(monkeypatch):
    monkeypatch.setattr(cdc, "COMMIT_SECONDS", 1000.0)
    broker = Hand([message()], [message()], [message()])
    it, _ = consumer_of(broker)
    it.step()
    assert len(broker.acknowledged) == 1
    it.step()
    it.step()
    assert len(broker.acknowledged) == 1
    it.disconnect()
    assert len(broker.acknowledged) == 3 and broker.is_closed


def test_a_broker_that_is_away_when_it_leaves_gives_the_last_changes_out_again(monkeypatch):
    monkeypatch.setattr(cdc, "COMMIT_SECONDS", 1000.0)
    broker = Hand([message()], [message()])
    it, _ = consumer_of(broker, Hand())
    it.step()
    it.step()
    broker.is_away = True
    it.disconnect()
    assert broker.is_closed and len(broker.acknowledged) == 1
    it.step()  # what was not committed is the old membership's
    it.disconnect()


def test_it_says_after_each_round_that_the_broker_answers_and_not_while_that_is_away():
    away = Hand()
    away.is_away = True
    told: list[str] = []
    for broker in (Hand([message()]), away):
        it = RowChangeConsumer(
            connect=lambda broker=broker: broker,
            wakes={"email_notifications": lambda: None},
            alive=lambda: told.append("alive"),
        )
        with contextlib.suppress(BrokerAway):
            for _ in range(2):
                it.step()
    assert told == ["alive"] * 2


@pytest.fixture(scope="module")
def mock() -> Iterator[str]:
    """Return the address of librdkafka's mock cluster."""
    producer = confluent_kafka.Producer({"bootstrap.servers": "", "test.mock.num.brokers": 1})
    brokers = producer.list_topics(timeout=PATIENCE).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)


@pytest.fixture
def topic(settings, monkeypatch, valkey_url, mock) -> str:
    """Use Redis Streams for events, and Kafka for nothing but the rows that Debezium reports."""
    name = f"shop.public.{uuid.uuid4().hex[:8]}"
    settings.EVENT_TRANSPORT, settings.REDIS_URL = "redis", valkey_url
    settings.KAFKA_BOOTSTRAP_SERVERS = mock
    monkeypatch.setattr(cdc, "TOPICS", [name])
    monkeypatch.setattr(cdc, "GROUP", f"cdc-{name}")
    return name


def shown() -> dict[tuple[str, str], float]:
    """Return what the web shows about brokers and lags, by metric and by broker or topic."""
    return {
        (
            sample.name.removeprefix("orderpost_"),
            sample.labels.get("broker") or sample.labels["topic"],
        ): sample.value
        for family in metrics.families(with_readers=True)
        for sample in family.samples
        if sample.name.startswith(("orderpost_broker_up", "orderpost_consumer_lag"))
    }


def read_status(capsys) -> dict[str, Any]:
    call_command("status", "--json")
    return dict(json.loads(capsys.readouterr().out))


@pytest.mark.django_db
def test_the_lag_of_the_group_is_shown_next_to_that_of_the_consumers_of_events(topic):
    Heartbeat.beat(name=CDC)
    publisher = kafka.KafkaPublisher()
    assert publisher.publish([Message(topic, "k", b"{}")] * 3) == [None] * 3
    publisher.close()
    values = shown()
    assert values["consumer_lag_events", topic] == 3 and values["consumer_lag_seconds", topic] > 0
    assert values["consumer_lag_events", "payment.payment.succeeded.v1"] == 0
    assert values["broker_up", "kafka"] == values["broker_up", "redis"] == 1


@pytest.mark.django_db
def test_each_family_is_exposed_once_and_its_samples_name_the_group(topic, settings):
    Heartbeat.beat(name=CDC)
    text = metrics.exposition(accept="")[0].decode()
    assert text.count("# TYPE orderpost_consumer_lag_events gauge") == 1
    assert f'orderpost_consumer_lag_events{{group="orderpost-cdc",topic="{topic}"}} 0.0' in text
    assert 'orderpost_consumer_lag_events{group="orderpost",topic="payment.payment.succeeded.v1"}' in text


@pytest.mark.django_db
def test_a_shop_without_it_asks_no_kafka(topic, settings):
    settings.KAFKA_BOOTSTRAP_SERVERS = "127.0.0.1:1"  # as in the compose file, where every process has it
    assert ("broker_up", "kafka") not in shown()


@pytest.mark.django_db
def test_a_kafka_that_only_debezium_writes_to_is_reported_when_it_is_away(topic, settings, capsys):
    Heartbeat.beat(name="poll")
    Heartbeat.beat(name=CDC)
    settings.KAFKA_BOOTSTRAP_SERVERS = "127.0.0.1:1"
    values = shown()
    assert values["broker_up", "kafka"] == 0 and values["broker_up", "redis"] == 1
    assert ("consumer_lag_events", topic) not in values
    (need,) = read_status(capsys)["needs"]
    assert need.startswith("Kafka does not answer")


@pytest.mark.django_db
def test_kafka_is_not_asked_while_the_database_cannot_say_whether_it_is_used(topic, monkeypatch):
    Heartbeat.beat(name=CDC)
    asked = []

    def away():
        raise OperationalError("away")

    monkeypatch.setattr(cdc, "has_run", away)
    monkeypatch.setattr(cdc, "read_cdc_lags", lambda: asked.append(1) or [])
    assert ("broker_up", "kafka") not in shown() and not asked


@pytest.mark.django_db
def test_status_names_what_waits(topic, capsys):
    Heartbeat.beat(name="poll")
    Heartbeat.beat(name=CDC)
    seen = read_status(capsys)
    assert seen["needs"] == []
    assert {"topic": topic, "events": 0, "seconds": 0.0} in seen["consumers"]
