"""Failures with the alerts that each causes, each as a context that repairs the failure at its end.

Times are a sixtieth of the real ones, as in `tests.flows.monitoring`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import confluent_kafka
import redis
import requests

from local.machine import free_port
from local.sandbox import WebhookSettings
from tests.flows.monitoring import Monitoring
from tests.kit import kafka
from tests.kit.roles import OPTIONAL
from tests.kit.shop import KEYS, PAYMENT, Shop, payment_event, stopped

MAILS = "orderpost.public.email_notifications"
POISON = "poison"
SETTINGS = {
    "BREAKER_OPEN_SECONDS": "0.25",
    "EMAIL_CONCURRENCY": "4",
    "EMAIL_READ_TIMEOUT": "5",
    "LEASE_SECONDS": "8",
    "DATABASE_TIMEOUT": "0.7",
    "WEBHOOKS_UNSIGNED": "off",
}


class Customers:
    """Place and pay orders at a steady rate. Do not repeat failed requests."""

    def __init__(self, shop: Shop, *, rate: float) -> None:
        self.shop, self.pause = shop, 1 / rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(self.pause):
            number += 1
            with contextlib.suppress(AssertionError, requests.RequestException):
                self.shop.pay(self.shop.place(f"c{number}@example.com"))

    def __enter__(self) -> Customers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@dataclasses.dataclass
class World:
    """A shop whose every process Prometheus scrapes, with customers and a provider that posts events.

    Every process has the address of `kafka`, which does not run, as in the compose file.
    """

    shop: Shop
    monitoring: Monitoring
    ports: dict[str, int]
    kafka: kafka.Cluster

    def start(self, *roles: str) -> None:
        for role in roles:
            self.shop.start(role, METRICS_PORT=str(self.ports[role]))

    def is_scraped(self, role: str) -> bool:
        return bool(self.monitoring.ask(f'orderpost_build_info{{role="{role}"}}'))

    def broker(self) -> redis.Redis:
        return redis.Redis.from_url(self.shop.valkey.url)

    def django(self, code: str) -> None:
        """Run a line in Django's shell, as an operator does."""
        self.shop.manage("shell", "--verbosity", "0", "--command", code)


@contextlib.contextmanager
def running(*roles: str, rate: float = 4.0, settings: dict[str, str] | None = None) -> Iterator[World]:
    """Start a shop of these processes with its monitoring and its customers."""
    ports = {role: free_port() for role in (*roles, *OPTIONAL)}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        broker = kafka.Cluster(folder=Path(folder))
        variables = {**SETTINGS, "KAFKA_BOOTSTRAP_SERVERS": broker.url, **(settings or {})}
        shop = stack.enter_context(Shop(proxied=False, durable_valkey=False, tls=False, **variables))
        shop.sandbox.webhooks.settings = WebhookSettings(url=shop.webhooks, keys=KEYS)
        with Monitoring(shop, ports=ports) as monitoring:
            world = World(shop, monitoring, ports, broker)
            world.start(*roles)
            with Customers(shop, rate=rate):
                yield world


@contextlib.contextmanager
def provider(world: World, **fault: object) -> Iterator[None]:
    world.shop.sandbox.fail(**fault)
    try:
        yield
    finally:
        world.shop.sandbox.heal()


@contextlib.contextmanager
def gone(world: World, *roles: str) -> Iterator[None]:
    """Kill processes (SIGKILL), and start them again at the end."""
    for role in roles:
        world.shop.kill(role)
    try:
        yield
    finally:
        world.start(*roles)


@contextlib.contextmanager
def consumer_gone(world: World) -> Iterator[None]:
    with gone(world, "consumer"), world.broker() as broker:
        broker.xadd(PAYMENT, payment_event(world.shop.place()))
        yield


@contextlib.contextmanager
def all_senders_gone(world: World) -> Iterator[None]:
    """Kill every process that sends, during some sends."""
    world.shop.sandbox.fail(kind="hang", seconds=4)
    world.shop.until(
        lambda: world.shop.query("SELECT 1 FROM email_notifications WHERE status = 'processing'"),
        "some are claimed",
    )
    with gone(world, "worker", "beat", "standby"):
        world.shop.sandbox.heal()
        yield


@contextlib.contextmanager
def frozen_process(world: World) -> Iterator[None]:
    with stopped([world.shop.processes["worker"].pid]):
        yield


@contextlib.contextmanager
def valkey_gone(world: World) -> Iterator[None]:
    world.shop.valkey.stop()
    try:
        yield
    finally:
        world.shop.valkey.start(log=world.shop.folder / "valkey.log")


@contextlib.contextmanager
def valkey_frozen(world: World) -> Iterator[None]:
    assert world.shop.valkey._process is not None
    with stopped([world.shop.valkey._process.pid]):
        yield


@contextlib.contextmanager
def postgres_gone(world: World) -> Iterator[None]:
    world.shop.postgres.stop()
    try:
        yield
    finally:
        world.shop.postgres.start(log=world.shop.folder / "postgres.log")


@contextlib.contextmanager
def poisonous_email(world: World) -> Iterator[None]:
    """Make the provider refuse an e-mail for ever. At the end, resend it without the cause."""
    with provider(world, kind="status", status=400, to=POISON):
        world.shop.pay(world.shop.place(f"{POISON}@example.com"))
        yield
    ((id,),) = world.shop.query("SELECT id::text FROM email_notifications WHERE status = 'dead_lettered'")
    assert world.shop.call("POST", f"/notifications/{id}/resend").status_code == 202


@contextlib.contextmanager
def poisonous_event(world: World) -> Iterator[None]:
    """Receive a payment for an unknown order. At the end, discard it."""
    with world.broker() as broker:
        broker.xadd(PAYMENT, payment_event("0199d0e4-7c00-7000-8000-000000000000"))
    try:
        yield
    finally:
        world.django(
            "from outbox.models import InboundDeadLetter as D;"
            " D.objects.discard(ids=D.objects.values_list('id', flat=True))"
        )


HUGE_EVENT = """
    UPDATE outbox_events SET payload = jsonb_build_object('text', repeat('x', 1100000))
    WHERE published_at IS NULL AND aggregate_id = '%s'
"""


@contextlib.contextmanager
def refused_event(world: World) -> Iterator[None]:
    """Publish an event that the broker refuses. At the end, discard it."""
    with gone(world, "relay"):
        order = world.shop.place()
        world.shop.query(HUGE_EVENT % order)
        world.shop.pay(order)
    try:
        yield
    finally:
        world.django(
            "from outbox.models import OutboxEvent as E;"
            " E.objects.discard(ids=E.objects.dead().values_list('id', flat=True))"
        )


FUTURE = """
    SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'outbox_events'::regclass ORDER BY c.relname DESC LIMIT 33
"""


@contextlib.contextmanager
def partitions_missing(world: World) -> Iterator[None]:
    """Drop the future partitions, as if no process had made any for weeks."""
    for (name,) in world.shop.query(FUTURE):
        world.shop.query(f"DROP TABLE {name}")
    try:
        yield
    finally:
        world.shop.manage("partitions", "ensure")


@contextlib.contextmanager
def forgotten(world: World, role: str) -> Iterator[None]:
    """At the end, kill an optional process and delete its heartbeat, as if the shop had none."""
    try:
        yield
    finally:
        if role in world.shop.processes:
            world.shop.kill(role)
        world.shop.query(f"DELETE FROM heartbeats WHERE name = '{role}'")


def start_optional(world: World, role: str) -> None:
    """Start an optional process, and wait until it works and Prometheus has seen it."""
    world.start(role)
    beats = f"SELECT 1 FROM heartbeats WHERE name = '{role}'"
    world.shop.until(lambda: world.shop.query(beats), f"{role} works")
    world.shop.until(lambda: world.is_scraped(role), f"{role} is scraped")


def report_row(world: World) -> None:
    """Write what Debezium does about an e-mail."""
    producer = confluent_kafka.Producer({"bootstrap.servers": world.kafka.url})
    producer.produce(MAILS, json.dumps({"id": str(uuid.uuid4())}))
    assert producer.flush(20) == 0


@contextlib.contextmanager
def with_cdc(world: World) -> Iterator[None]:
    """Run Kafka and consume_cdc, and read a row. At the end, stop both."""
    kafka.require()
    world.kafka.start()
    try:
        world.kafka.wait_until_all_answer()
        with forgotten(world, "cdc"):
            report_row(world)  # the broker makes the topic
            start_optional(world, "cdc")
            lag = f'orderpost_consumer_lag_events{{topic="{MAILS}"}} == 0'
            world.shop.until(lambda: world.monitoring.ask(lag), "the row is read")
            yield
    finally:
        world.kafka.stop()


@contextlib.contextmanager
def cdc_gone(world: World) -> Iterator[None]:
    """Kill the only consumer of Debezium's messages."""
    with with_cdc(world):
        world.shop.kill("cdc")
        report_row(world)
        yield


@contextlib.contextmanager
def orders_stuck(world: World) -> Iterator[None]:
    """Reserve the stock of an order that nobody pays, long ago. At the end, only now."""
    order = world.shop.place()
    reserved = "UPDATE orders SET stock_reserved_at = now() - interval '%s hours' WHERE id = '%s'"
    world.shop.query(reserved % (25, order))
    try:
        yield
    finally:
        world.shop.query(reserved % (0, order))


@contextlib.contextmanager
def slot_unread(world: World) -> Iterator[None]:
    """Make a replication slot without a reader. At the end, drop it."""
    world.shop.query("SELECT pg_create_logical_replication_slot('orderpost_debezium', 'pgoutput')")
    try:
        yield
    finally:
        world.shop.query("SELECT pg_drop_replication_slot('orderpost_debezium')")


@contextlib.contextmanager
def webhooks_silent(world: World) -> Iterator[None]:
    settings, world.shop.sandbox.webhooks.settings = world.shop.sandbox.webhooks.settings, None
    try:
        yield
    finally:
        world.shop.sandbox.webhooks.settings = settings


@contextlib.contextmanager
def breaker_forced(world: World) -> Iterator[None]:
    force = "from notifications.delivery.process import gate; gate().force('sendgrid', {}, reason='drill')"
    world.django(force.format("'closed'"))
    try:
        yield
    finally:
        world.django(force.format("None"))


@dataclasses.dataclass(frozen=True)
class Failure:
    """One failure: what breaks, and the alerts that it causes.

    `follows` are further alerts of Prometheus, which Alertmanager inhibits because of the first ones.
    """

    name: str
    breaks: Callable[[World], AbstractContextManager[None]]
    alerts: tuple[str, ...]
    follows: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


FAILURES = [
    Failure(
        "provider-down",
        lambda world: provider(world, kind="status", status=503),
        ("EmailProvidersDown",),
        ("EmailSuccessRateLow",),
    ),
    Failure(
        "provider-refuses-us",
        lambda world: provider(world, kind="status", status=401),
        ("EmailProvidersDown",),
    ),
    Failure("provider-slow", lambda world: provider(world, kind="slow", seconds=3), ("EmailsLate",)),
    Failure(
        "provider-fails-some",
        lambda world: provider(world, kind="status", status=500, probability=0.5),
        ("EmailSuccessRateLow",),
    ),
    Failure("provider-reports-nothing", webhooks_silent, ("EmailWebhooksSilent",)),
    Failure("email-refused", poisonous_email, ("EmailDeadLetters",)),
    Failure("breaker-forced", breaker_forced, ("EmailBreakerForced",)),
    Failure("web-gone", lambda world: gone(world, "web"), ("ApiDown",)),
    Failure("worker-gone", lambda world: gone(world, "worker"), ("ProcessGone",)),
    Failure("worker-frozen", frozen_process, ("ProcessGone",)),
    Failure("beat-gone", lambda world: gone(world, "beat"), ("ProcessGone",)),
    Failure(
        "all-senders-gone",
        all_senders_gone,
        ("ProcessGone", "PollMissing", "EmailNothingSent", "EmailProcessingStuck"),
    ),
    Failure("cdc-gone", cdc_gone, ("ProcessGone",), ("ConsumerLag",)),
    Failure("replication-slot-unread", slot_unread, ("ReplicationSlotUnread",)),
    Failure("relay-gone", lambda world: gone(world, "relay"), ("ProcessGone",), ("RelayLag",)),
    Failure("consumer-gone", consumer_gone, ("ProcessGone",), ("ConsumerLag",)),
    Failure("valkey-gone", valkey_gone, ("BrokerDown",), ("RelayLag",)),
    Failure("valkey-frozen", valkey_frozen, ("BrokerDown",), ("RelayLag",)),
    Failure("database-gone", postgres_gone, ("DatabaseDown",), ("ApiErrors",)),
    Failure("database-frozen", lambda world: world.shop.postgres_frozen(), ("DatabaseDown",)),
    Failure("inbound-event-poisonous", poisonous_event, ("DeadEvents",)),
    Failure("event-refused", refused_event, ("RelayBlocked", "DeadEvents")),
    Failure("orders-stuck", orders_stuck, ("OrdersStuck",)),
    Failure("partitions-missing", partitions_missing, ("PartitionsRunOut",)),
]
