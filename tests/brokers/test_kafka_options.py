"""The options that orderpost sets cannot be set by KAFKA_OPTIONS, and the others reach librdkafka."""

from __future__ import annotations

from typing import Any

import pytest

from events.transports.kafka import RESERVED, SESSION_MS
from tests.kit.words import kafka


@pytest.fixture
def made(monkeypatch, settings) -> list[dict[str, Any]]:
    """Return the configuration of a producer and of a consumer, which connect to nobody."""
    settings.KAFKA_BOOTSTRAP_SERVERS = "kafka:9092"
    configs: list[dict[str, Any]] = []

    class Client:
        def __init__(self, options: dict[str, Any], **_: Any) -> None:
            configs.append(options)

        def list_topics(self, *_: Any, **__: Any) -> None: ...

        def subscribe(self, *_: Any, **__: Any) -> None: ...

    monkeypatch.setattr("confluent_kafka.Producer", Client)
    monkeypatch.setattr("confluent_kafka.Consumer", Client)
    return configs


def make() -> None:
    kafka.KafkaPublisher().check()
    kafka.KafkaConsumer(topics=["test.v1"], group="shop", name="one")


def test_each_option_that_orderpost_sets_is_reserved(made):
    make()
    names = {name for options in made for name in options if not name.endswith("_cb")}
    assert names - {"session.timeout.ms", "heartbeat.interval.ms"} <= RESERVED


def test_a_session_lasts_six_seconds_with_four_heartbeats(made):
    make()
    _, consumer = made
    assert (consumer["session.timeout.ms"], consumer["heartbeat.interval.ms"]) == (SESSION_MS, 1500)


def test_an_option_reaches_the_clients_that_know_it(made, settings):
    settings.KAFKA_OPTIONS = {"client.rack": "a", "session.timeout.ms": "3000"}
    make()
    producer, consumer = made
    assert producer["client.rack"] == consumer["client.rack"] == "a"
    assert "session.timeout.ms" not in producer
    assert (consumer["session.timeout.ms"], consumer["heartbeat.interval.ms"]) == (3000, 750)
