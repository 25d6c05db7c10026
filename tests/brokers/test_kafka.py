"""Kafka as operators run it, on one real broker: TLS, passwords, access control, topics made by a policy.

Three brokers, killed while events flow, are drills: tests/drills/test_kafka.py.
"""

from __future__ import annotations

import contextlib
import io
import re
import uuid
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import admin
from django.core.management import CommandError, call_command
from django.db import transaction

from events.management.commands.make_topics import topics
from local.machine import PROJECT
from tests.kit import kafka as brokers
from tests.kit.brokers import receive
from tests.kit.certificates import make_authority
from tests.kit.waiting import PATIENCE, until
from tests.kit.words import (
    BrokerAway,
    DomainEvent,
    Message,
    Received,
    Relay,
    cdc,
    kafka,
    transports,
    write_event,
)

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct"])


@pytest.fixture(autouse=True, params=["SCRAM-SHA-512"])
def secure(request, shared_kafka, settings, monkeypatch) -> None:
    """Use the broker's second listener, with the right password and the right authority."""
    settings.EVENT_TRANSPORT = "kafka"
    settings.KAFKA_BOOTSTRAP_SERVERS = shared_kafka.secure_url
    settings.KAFKA_OPTIONS = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": request.param,
        "sasl.username": brokers.USER,
        "sasl.password": brokers.PASSWORD,
        "ssl.ca.pem": shared_kafka.authority,
    }
    monkeypatch.setitem(kafka.PRODUCER, "allow.auto.create.topics", False)


@pytest.fixture
def topic(shared_kafka) -> str:
    """Make a topic."""
    name = f"test.{uuid.uuid4().hex[:8]}.v1"
    make(shared_kafka, name)
    return name


def by_admin(shared_kafka: brokers.Shared, verb: str, *arguments: Any) -> Any:
    """Call an administrator's verb and return its last answer."""
    client = admin.AdminClient({"bootstrap.servers": shared_kafka.url})  # its answers end with it
    return [answer.result(PATIENCE) for answer in getattr(client, verb)(list(arguments)).values()][-1]


def make(shared_kafka: brokers.Shared, name: str) -> None:
    by_admin(shared_kafka, "create_topics", admin.NewTopic(name, 2, 1))


def forbid(shared_kafka: brokers.Shared, name: str, operation: admin.AclOperation) -> admin.AclBinding:
    """Deny one operation on a topic to the user of the tests."""
    rule = admin.AclBinding(
        admin.ResourceType.TOPIC,
        name,
        admin.ResourcePatternType.LITERAL,
        f"User:{brokers.USER}",
        "*",
        operation,
        admin.AclPermissionType.DENY,
    )
    # Another rule, for others do exist from now on: whoever no rule names would be shut out.
    everyone = admin.AclBinding(
        admin.ResourceType.TOPIC,
        name,
        admin.ResourcePatternType.LITERAL,
        "User:*",
        "*",
        admin.AclOperation.ALL,
        admin.AclPermissionType.ALLOW,
    )
    by_admin(shared_kafka, "create_acls", rule, everyone)
    return rule


def allow(shared_kafka: brokers.Shared, rule: admin.AclBinding) -> None:
    wanted = admin.AclBindingFilter(
        rule.restype,
        rule.name,
        rule.resource_pattern_type,
        rule.principal,
        rule.host,
        rule.operation,
        rule.permission_type,
    )
    by_admin(shared_kafka, "delete_acls", wanted)


def grant(shared_kafka: brokers.Shared, kind: admin.ResourceType, name: str, *operations: str) -> None:
    """Allow the user of the tests these operations, and by the first rule forbid everyone all others."""
    rights = [
        admin.AclBinding(
            kind,
            name,
            admin.ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            admin.AclOperation[operation.upper()],
            admin.AclPermissionType.ALLOW,
        )
        for user, operation in [("nobody", "All"), *((brokers.USER, operation) for operation in operations)]
    ]
    by_admin(shared_kafka, "create_acls", *rights)


def write(topic: str, count: int = 1) -> None:
    """Write events past the application."""
    for n in range(count):
        with transaction.atomic():
            write_event(
                aggregate_type="test",
                aggregate_id=uuid.uuid4(),
                event_type=topic,
                sequence=1,
                payload={"n": n},
            )


def receive_some(topics: list[str], count: int) -> list[Received]:
    consumer = transports.consumer(topics=topics, group=f"g-{uuid.uuid4()}", name="a")
    messages = receive(consumer, count)
    consumer.done(messages)
    consumer.close()
    return messages


def relay_until(relay: Relay, topic: str) -> None:
    """Relay until the topic's events are published. Like a process, go on after a slow answer of Kafka."""

    def step() -> None:
        with contextlib.suppress(BrokerAway):
            relay.step()

    waiting = DomainEvent.objects.filter(event_type=topic, published_at=None)
    until(lambda: not waiting.exists(), meanwhile=step)


@pytest.mark.parametrize("secure", ["PLAIN", "SCRAM-SHA-512"], indirect=True)
def test_events_pass_over_tls_with_a_password(topic):
    write(topic, 5)
    relay = Relay()
    relay_until(relay, topic)
    relay.close()
    assert {message.topic for message in receive_some([topic], 5)} == {topic}


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("sasl.password", "wrong", "Authentication failed"),
        ("ssl.ca.pem", make_authority()[0], "certificate verify failed"),
    ],
)
def test_a_wrong_password_or_certificate_is_named_and_loses_nothing(
    topic, settings, fast, option, value, reason
):
    fast.kafka()
    right = settings.KAFKA_OPTIONS
    settings.KAFKA_OPTIONS = right | {option: value}
    write(topic)
    relay = Relay()
    with pytest.raises(BrokerAway, match=reason):
        relay.step()
    event = DomainEvent.objects.get(event_type=topic)
    assert (event.published_at, event.retry_count, event.dead_lettered_at) == (None, 0, None)
    settings.KAFKA_OPTIONS = right
    relay.hand_over()
    relay_until(relay, topic)
    relay.close()


@pytest.mark.parametrize("how", ["missing", "forbidden to see", "forbidden to write"])
def test_a_topic_that_is_missing_or_forbidden_keeps_its_events_and_the_others_go_on(topic, shared_kafka, how):
    closed = f"closed.{topic}"
    rule = None
    if how != "missing":
        make(shared_kafka, closed)
        operation = admin.AclOperation.DESCRIBE if how == "forbidden to see" else admin.AclOperation.WRITE
        rule = forbid(shared_kafka, closed, operation)
    write(closed)
    write(topic)
    relay = Relay()
    relay_until(relay, topic)
    event = DomainEvent.objects.get(event_type=closed)
    assert (event.published_at, event.retry_count, event.dead_lettered_at) == (None, 0, None)
    assert ("nknown topic" if how == "missing" else "uthoriz") in event.last_error
    if rule is None:
        make(shared_kafka, closed)
    else:
        allow(shared_kafka, rule)
    relay_until(relay, closed)
    relay.close()


def test_a_topic_that_may_not_be_read_holds_back_itself_alone(topic, shared_kafka):
    closed = f"closed.{topic}"
    make(shared_kafka, closed)
    forbid(shared_kafka, closed, admin.AclOperation.READ)
    publisher = transports.publisher()
    assert publisher.publish([Message(name, "k", b"{}") for name in (closed, topic)]) == [None, None]
    publisher.close()
    assert receive_some([closed, topic], 1)[0].topic == topic


def test_topics_are_made_by_the_policy_and_others_are_told(shared_kafka, monkeypatch):
    also, other = (f"test.{uuid.uuid4().hex[:8]}.v1" for _ in range(2))
    make(shared_kafka, other)
    wanted = [*topics(), also, other]
    monkeypatch.setattr("events.management.commands.make_topics.topics", lambda: wanted)

    def say(**options: bool) -> list[str]:
        out = io.StringIO()
        call_command("make_topics", stdout=out, **brokers.ONE_BROKER, **options)
        return out.getvalue().splitlines()

    assert f"{also}: would be made" in say(dry_run=True)
    said = say()
    assert f"{also}: made" in said and len(said) == len(wanted)
    said = say()
    assert f"{also}: exists" in said
    (theirs,) = [line for line in said if line.startswith(other)]
    assert "2 partitions, not 3" in theirs and "min.insync.replicas" not in theirs
    resource = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, also)
    config = by_admin(shared_kafka, "describe_configs", resource)
    assert config["retention.ms"].value == str(7 * 24 * 60 * 60 * 1000)
    wanted.append(f"more.{also}")
    out = io.StringIO()
    with pytest.raises(CommandError, match="1 topics could not be made"):
        call_command("make_topics", stdout=out)  # three copies, by default
    assert "replication factor" in out.getvalue().lower()


def documented(user: str) -> tuple[list[str], list[str]]:
    """Return the rights on the topics and on the group that the docs name for a user of Debezium's topics."""
    page = (PROJECT / "docs/guides/triggers.md").read_text()
    (row,) = re.findall(rf"^ *\| {re.escape(user)}.*\| (.*) \| (.*) \|$", page, flags=re.MULTILINE)
    return row[0].split(", "), row[1].split(", ")


class TestLagWithAcls:
    """The web reads the lag of Debezium's topics as a user with the documented rights alone."""

    @pytest.fixture
    def group(self, topic: str, shared_kafka: brokers.Shared, monkeypatch: pytest.MonkeyPatch) -> str:
        producer = confluent_kafka.Producer({"bootstrap.servers": shared_kafka.url})
        for _ in range(3):
            producer.produce(topic, b"{}")
        producer.flush(20)
        monkeypatch.setattr(cdc, "TOPICS", [topic])
        monkeypatch.setattr(cdc, "GROUP", f"cdc-{topic}")
        return f"cdc-{topic}"

    def test_the_documented_rights_suffice(
        self, topic: str, group: str, shared_kafka: brokers.Shared
    ) -> None:
        on_topics, on_group = documented("the web")
        grant(shared_kafka, admin.ResourceType.TOPIC, topic, *on_topics)
        grant(shared_kafka, admin.ResourceType.GROUP, group, *on_group)
        (lag,) = cdc.read_cdc_lags()
        assert (lag.topic, lag.events) == (topic, 3) and lag.seconds > 0

    @pytest.mark.parametrize(
        ("on_topics", "on_group", "said"),
        [
            ([], ["Describe"], "TOPIC_AUTHORIZATION_FAILED"),
            (["Describe"], ["Describe"], "TOPIC_AUTHORIZATION_FAILED"),
            (["Read"], [], "committed offsets"),
        ],
    )
    def test_with_less_it_is_an_error_and_not_a_lag_of_0(
        self,
        topic: str,
        group: str,
        shared_kafka: brokers.Shared,
        on_topics: list[str],
        on_group: list[str],
        said: str,
    ) -> None:
        grant(shared_kafka, admin.ResourceType.TOPIC, topic, *on_topics)
        grant(shared_kafka, admin.ResourceType.GROUP, group, *on_group)
        with pytest.raises(BrokerAway, match=said):
            cdc.read_cdc_lags()

    def test_a_consumer_with_its_documented_rights_gets_the_changes(
        self, topic: str, group: str, shared_kafka: brokers.Shared
    ) -> None:
        on_topics, on_group = documented("`consume_cdc`")
        grant(shared_kafka, admin.ResourceType.TOPIC, topic, *on_topics)
        grant(shared_kafka, admin.ResourceType.GROUP, group, *on_group)
        consumer = kafka.KafkaConsumer(topics=[topic], group=group, name="a", creates=False)
        consumer.done(receive(consumer, 3))
        consumer.close()
        (lag,) = cdc.read_cdc_lags()
        assert lag.events == 0
