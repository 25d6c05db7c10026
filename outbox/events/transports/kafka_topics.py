"""Make Kafka's topics by one policy, and compare those that are there with it.

Partitions, copies, how many copies must have an event before it counts as published, and how long the broker
keeps it: KAFKA_TOPIC_…. Called by `manage.py make_topics`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import confluent_kafka as kafka
from confluent_kafka import admin
from django.conf import settings

from outbox.events.transports.base import BrokerAway
from outbox.events.transports.kafka_connection import LOGGER, Reasons, connection

SECONDS = 15.0
DAY_MILLISECONDS = 24 * 60 * 60 * 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one topic: `made`, `kept` as it is, or not made for a `reason`."""

    topic: str
    made: bool = False
    differs: tuple[str, ...] = ()  # where a kept one is not what the policy says
    reason: str = ""


def policy() -> dict[str, str]:
    """Return the topics' configuration, without partitions and copies."""
    return {
        "cleanup.policy": "delete",
        "min.insync.replicas": str(settings.KAFKA_TOPIC_MIN_INSYNC_REPLICAS),
        "retention.ms": str(settings.KAFKA_TOPIC_RETENTION_DAYS * DAY_MILLISECONDS),
    }


def make_topics(names: Sequence[str], *, dry_run: bool = False) -> Iterator[Outcome]:
    """Make the topics that are missing; leave the others as they are. Raises `BrokerAway`."""
    reasons = Reasons()
    client = admin.AdminClient(connection() | {"error_cb": reasons.keep}, logger=LOGGER)
    try:
        there = client.list_topics(timeout=SECONDS).topics
        missing = [name for name in names if name not in there]
        yield from _make(client, missing, dry_run=dry_run)
        for name in names:
            if name in there:
                yield Outcome(name, differs=tuple(_differences(client, there[name])))
    except kafka.KafkaException as error:
        client.poll(0)
        raise BrokerAway(reasons.explain(error)) from error


def _make(client: admin.AdminClient, names: Sequence[str], *, dry_run: bool) -> Iterator[Outcome]:
    if not names:
        return
    new = [
        admin.NewTopic(
            name,
            num_partitions=settings.KAFKA_TOPIC_PARTITIONS,
            replication_factor=settings.KAFKA_TOPIC_REPLICATION_FACTOR,
            config=policy(),
        )
        for name in names
    ]
    answers = client.create_topics(new, operation_timeout=SECONDS, validate_only=dry_run)
    for name, answer in answers.items():
        try:
            answer.result(2 * SECONDS)
        except kafka.KafkaException as error:
            code = error.args[0].code()
            if code == kafka.KafkaError.TOPIC_ALREADY_EXISTS:  # somebody else made it meanwhile
                yield Outcome(name)
            elif code in (kafka.KafkaError._TRANSPORT, kafka.KafkaError._TIMED_OUT):
                raise
            else:
                yield Outcome(name, reason=error.args[0].str())
        else:
            yield Outcome(name, made=True)


def _differences(client: admin.AdminClient, topic: Any) -> Iterator[str]:
    """Say where a topic is not what the policy says."""
    wanted, found = settings.KAFKA_TOPIC_PARTITIONS, len(topic.partitions)
    if found != wanted:
        yield f"{found} partitions, not {wanted}"
    copies = min((len(one.replicas) for one in topic.partitions.values()), default=0)
    if copies != settings.KAFKA_TOPIC_REPLICATION_FACTOR:
        yield f"{copies} copies, not {settings.KAFKA_TOPIC_REPLICATION_FACTOR}"
    resource = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, topic.topic)
    (answer,) = client.describe_configs([resource], request_timeout=SECONDS).values()
    configuration = answer.result(2 * SECONDS)
    for name, value in policy().items():
        if configuration[name].value != value:
            yield f"{name}={configuration[name].value}, not {value}"
