"""Make Kafka's topics by one policy, and compare existing ones with it, for `manage.py make_topics`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import confluent_kafka as kafka
from confluent_kafka import admin

from events.transports.base import BrokerAway
from events.transports.kafka import LOGGER, Reasons, connection

SECONDS = 15.0
DAY_MILLISECONDS = 24 * 60 * 60 * 1000


@dataclasses.dataclass(frozen=True, slots=True)
class TopicPolicy:
    """The properties of topics. An event counts as published when `min_insync_replicas` brokers have it."""

    partitions: int
    replication_factor: int
    min_insync_replicas: int
    retention_days: int

    @property
    def config(self) -> dict[str, str]:
        """The topics' configuration, without partitions and replicas."""
        return {
            "cleanup.policy": "delete",
            "min.insync.replicas": str(self.min_insync_replicas),
            "retention.ms": str(self.retention_days * DAY_MILLISECONDS),
        }


@dataclasses.dataclass(frozen=True, slots=True)
class TopicOutcome:
    """The result for one topic: made (`is_made`), not made for a `reason`, or otherwise kept as it is."""

    topic: str
    is_made: bool = False
    differs: tuple[str, ...] = ()  # how a kept topic differs from the policy
    reason: str = ""


def make_topics(
    names: Sequence[str], *, policy: TopicPolicy, dry_run: bool = False
) -> Iterator[TopicOutcome]:
    """Make missing topics, and do not change the others. Raise `BrokerAway`."""
    reasons = Reasons()
    client = admin.AdminClient(connection() | {"error_cb": reasons.keep}, logger=LOGGER)
    try:
        there = client.list_topics(timeout=SECONDS).topics
        missing = [name for name in names if name not in there]
        yield from _make(client, missing, policy, dry_run=dry_run)
        for name in names:
            if name in there:
                yield TopicOutcome(name, differs=tuple(_differences(client, there[name], policy)))
    except kafka.KafkaException as error:
        client.poll(0)
        raise BrokerAway(reasons.explain(error)) from error


def _make(
    client: admin.AdminClient, names: Sequence[str], policy: TopicPolicy, *, dry_run: bool
) -> Iterator[TopicOutcome]:
    if not names:
        return
    new = [
        admin.NewTopic(
            name,
            num_partitions=policy.partitions,
            replication_factor=policy.replication_factor,
            config=policy.config,
        )
        for name in names
    ]
    answers = client.create_topics(new, operation_timeout=SECONDS, validate_only=dry_run)
    for name, answer in answers.items():
        try:
            answer.result(2 * SECONDS)
        except kafka.KafkaException as error:
            code = error.args[0].code()
            if code == kafka.KafkaError.TOPIC_ALREADY_EXISTS:  # another process made it meanwhile
                yield TopicOutcome(name)
            elif code in (kafka.KafkaError._TRANSPORT, kafka.KafkaError._TIMED_OUT):
                raise
            else:
                yield TopicOutcome(name, reason=error.args[0].str())
        else:
            yield TopicOutcome(name, is_made=True)


def _differences(client: admin.AdminClient, topic: Any, policy: TopicPolicy) -> Iterator[str]:
    """Yield each difference between a topic and the policy."""
    count = len(topic.partitions)
    if count != policy.partitions:
        yield f"{count} partitions, not {policy.partitions}"
    copies = min((len(partition.replicas) for partition in topic.partitions.values()), default=0)
    if copies != policy.replication_factor:
        yield f"{copies} copies, not {policy.replication_factor}"
    resource = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, topic.topic)
    (answer,) = client.describe_configs([resource], request_timeout=SECONDS).values()
    configuration = answer.result(2 * SECONDS)
    for name, value in policy.config.items():
        if configuration[name].value != value:
            yield f"{name}={configuration[name].value}, not {value}"
