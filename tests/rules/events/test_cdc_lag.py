"""The lag of consume_cdc is a metric if a shop runs it, even if nothing else uses Kafka."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from django.core.management import call_command
from django.db import OperationalError

from orders.metrics import lag_of_cdc
from outbox.events.consuming.cdc_lag import CDC
from tests.kit.words import Heartbeat, Message, cdc, cdc_lag, kafka, metrics

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def mock() -> Iterator[str]:
    """Return the address of librdkafka's mock cluster."""
    producer = confluent_kafka.Producer({"bootstrap.servers": "", "test.mock.num.brokers": 1})
    found = producer.list_topics(timeout=10).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in found)


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
        (one.name.removeprefix("orderpost_"), one.labels.get("broker") or one.labels["topic"]): one.value
        for family in metrics.families(with_readers=True)
        for one in family.samples
        if one.name.startswith(("orderpost_broker_up", "orderpost_consumer_lag"))
    }


def read_status(capsys) -> dict[str, Any]:
    call_command("status", "--json")
    return dict(json.loads(capsys.readouterr().out))


def test_the_lag_of_the_group_is_shown_next_to_that_of_the_consumers_of_events(topic):
    Heartbeat.beat(name=CDC)
    publisher = kafka.Publisher()
    assert publisher.publish([Message(topic, "k", b"{}")] * 3) == [None] * 3
    publisher.close()
    found = shown()
    assert found["consumer_lag_events", topic] == 3 and found["consumer_lag_seconds", topic] > 0
    assert found["consumer_lag_events", "payment.payment.succeeded.v1"] == 0
    assert found["broker_up", "kafka"] == found["broker_up", "redis"] == 1


def test_each_family_is_exposed_once_and_its_samples_name_the_group(topic, settings):
    Heartbeat.beat(name=CDC)
    text = metrics.exposition(accept="")[0].decode()
    assert text.count("# TYPE orderpost_consumer_lag_events gauge") == 1
    assert f'orderpost_consumer_lag_events{{group="{cdc.GROUP}",topic="{topic}"}} 0.0' in text
    assert 'orderpost_consumer_lag_events{group="orderpost",topic="payment.payment.succeeded.v1"}' in text


def test_a_shop_without_it_asks_no_kafka(topic, settings):
    settings.KAFKA_BOOTSTRAP_SERVERS = "127.0.0.1:1"  # as in the compose file, where every process has it
    assert ("broker_up", "kafka") not in shown()


def test_a_kafka_that_only_debezium_writes_to_is_reported_when_it_is_away(topic, settings, capsys):
    Heartbeat.beat(name="poll")
    Heartbeat.beat(name=CDC)
    settings.KAFKA_BOOTSTRAP_SERVERS = "127.0.0.1:1"
    found = shown()
    assert found["broker_up", "kafka"] == 0 and found["broker_up", "redis"] == 1
    assert ("consumer_lag_events", topic) not in found
    (need,) = read_status(capsys)["needs"]
    assert need.startswith("Kafka does not answer")


def test_kafka_is_not_asked_while_the_database_cannot_say_whether_it_is_used(topic, monkeypatch):
    Heartbeat.beat(name=CDC)
    asked = []

    def away():
        raise OperationalError("away")

    monkeypatch.setitem(metrics._uses, lag_of_cdc, away)
    monkeypatch.setattr(cdc_lag, "read_cdc_lags", lambda: asked.append(1) or [])
    assert ("broker_up", "kafka") not in shown() and not asked


def test_status_names_what_waits(topic, capsys):
    Heartbeat.beat(name="poll")
    Heartbeat.beat(name=CDC)
    found = read_status(capsys)
    assert found["needs"] == []
    assert {"topic": topic, "events": 0, "seconds": 0.0} in found["consumers"]
