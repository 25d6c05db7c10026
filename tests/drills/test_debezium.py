"""Real Debezium in a real Kafka Connect: each failure of its way, and no e-mail lost or sent twice.

The tests share one Kafka, one Connect and one shop, and go on from one another's rows.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from local.machine import HOST, PROJECT, free_port
from local.servers import EmbeddedPostgres
from tests.drills.connect import EmbeddedConnect
from tests.kit import kafka
from tests.kit.shop import Shop
from tests.kit.words import cdc

pytestmark = pytest.mark.drill
MAILS = "orderpost.public.email_notifications"
SLOT = "orderpost_debezium"
#: Whatever a worker with these sends, it sends because of a trigger other than the poll and the fast path.
TOLD = {"POLL_INTERVAL": "3600", "FAST_PATH": "off"}
#: How long rows must stay unsent. A worker claims within half a second of a message.
STAY_SECONDS = 3.0


class Postgres(EmbeddedPostgres):
    """Keeps little of the log for a slot that nobody reads."""

    def argv(self) -> list[str]:
        names = ("max_slot_wal_keep_size", "max_wal_size", "min_wal_size")
        return [*super().argv(), *(part for name in names for part in ("-c", f"{name}=64MB"))]


class World:
    """A shop with no process yet, and Debezium following its database."""

    def __init__(self, shop: Shop, broker: kafka.Cluster, connect: EmbeddedConnect) -> None:
        self.shop, self.broker, self.connect = shop, broker, connect
        self.mails = 0

    def start(self, *names: str, **settings: Any) -> None:
        self.shop.start(*names, KAFKA_BOOTSTRAP_SERVERS=self.broker.url, **settings)

    def insert(self, count: int) -> None:
        """Write e-mails with plain SQL."""
        self.shop.insert_mails(count)
        self.mails += count

    def until_sent(self, what: str) -> None:
        self.shop.until(lambda: self.shop.all_sent(self.mails), what, seconds=90)

    def messages(self) -> list[Any]:
        """Return the messages of the topic of e-mails."""
        settings = {"bootstrap.servers": self.broker.url, "group.id": "test", "enable.partition.eof": True}
        reader = confluent_kafka.Consumer(settings)
        partitions = reader.list_topics(MAILS, timeout=20).topics[MAILS].partitions
        reader.assign([confluent_kafka.TopicPartition(MAILS, number, 0) for number in partitions])
        messages, ended = [], 0
        while ended < len(partitions):
            message = reader.poll(20)
            assert message is not None
            if message.error() is not None:
                ended += 1
            else:
                messages.append(message)
        reader.close()
        return messages

    def caught_up(self) -> bool:
        """Return whether a message tells of each e-mail, and the group of consumers has read all messages.

        A consumer that has read them is past its start, at which it wakes the workers.
        """
        messages = self.messages()
        told = {json.loads(message.value())["id"] for message in messages}
        ends = {message.partition(): message.offset() + 1 for message in messages}
        group = {"bootstrap.servers": self.broker.url, "group.id": cdc.GROUP}
        asker = confluent_kafka.Consumer(group)  # joins no group, because it subscribes to nothing
        places = [confluent_kafka.TopicPartition(MAILS, number) for number in ends]
        read = {place.partition: place.offset for place in asker.committed(places, timeout=20)}
        asker.close()
        return told == {str(id) for (id,) in self.shop.rows("id")} and read == ends

    def insert_untold(self, count: int) -> None:
        """Write e-mails while Debezium is down; return once so many of them have stayed unsent.

        The last message before that may have woken a drain that still claims the first ones.
        """

        def stay() -> bool:
            self.insert(count)
            time.sleep(STAY_SECONDS)
            ((left,),) = self.shop.query("SELECT count(*) FROM email_notifications WHERE status = 'pending'")
            return bool(left >= count)

        self.shop.until(stay, "e-mails that nobody was told of stay unsent")

    def slot(self) -> tuple[str, bool]:
        ((status, active),) = self.shop.query(
            f"SELECT wal_status, active FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
        )
        return status, active

    @contextlib.contextmanager
    def connector_stopped(self) -> Iterator[None]:
        self.connect.call("PUT", "/connectors/orderpost/stop")
        try:
            self.shop.until(lambda: not self.slot()[1], "the connector has stopped")
            yield
        finally:
            self.connect.call("PUT", "/connectors/orderpost/resume")

    @contextlib.contextmanager
    def running(self, *names: str, **settings: Any) -> Iterator[None]:
        self.start(*names, **settings)
        try:
            yield
        finally:
            for name in names:
                if name in self.shop.processes:
                    self.shop.terminate(name, seconds=30)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    unbuilt = Shop()
    unbuilt.postgres = Postgres(data=unbuilt.folder / "postgres", port=unbuilt.postgres.port)
    with (
        kafka.cluster() as broker,
        unbuilt as shop,
        tempfile.TemporaryDirectory(prefix="orderpost-connect-") as folder,
    ):
        setup = PROJECT / "docker" / "debezium" / "setup.sql"
        psql = [
            str(shop.postgres.bin / "psql"),
            shop.postgres.url,
            "-qv",
            "ON_ERROR_STOP=1",
            "-f",
            str(setup),
        ]
        for _ in range(2):  # it may be run again
            subprocess.run(psql, check=True, timeout=60)
        database = {
            "HOST": HOST,
            "PORT": str(shop.postgres.port),
            "NAME": "orderpost",
            "USER": "orderpost_cdc",
        }
        connect = EmbeddedConnect(
            bootstrap=broker.url,
            folder=Path(folder),
            port=free_port(),
            database=database | {"PASSWORD": "unused"},
        )
        try:
            connect.run()
            connect.put()
            yield World(shop, broker, connect)
        finally:
            connect.kill()


def once_each(world: World) -> None:
    accepted = world.shop.accepted()
    assert len(accepted) == world.mails and set(accepted.values()) == {1}


def test_rows_of_plain_sql_are_sent_and_no_message_has_more_than_an_id(world):
    with world.running("worker", "cdc", **TOLD):
        world.insert(20)
        world.until_sent("Debezium has told of all")
    once_each(world)
    rows = {str(id): address for id, address in world.shop.rows("id, recipient_email")}
    messages = world.messages()
    assert len(messages) == 20
    for message in messages:
        row = json.loads(message.value())
        assert set(row) == {"id"} and row["id"] in rows
        assert json.loads(message.key()) == {"id": row["id"]}
        assert "@" not in repr((message.value(), message.headers()))
    world.shop.until(lambda: world.slot() == ("reserved", True), "the slot is followed")


def test_connect_is_killed_and_a_column_added_meanwhile(world):
    with world.running("worker", "cdc", **TOLD):
        world.insert(5)
        world.until_sent("it works")
        world.shop.until(world.caught_up, "the consumer has read every message")
        world.connect.kill()
        world.shop.query(
            "ALTER TABLE email_notifications ADD COLUMN of_a_later_release text DEFAULT 'a@b.example'"
        )
        world.insert_untold(10)
        world.connect.run()
        world.until_sent("Debezium has told of what was written meanwhile")
        world.insert(5)
        world.until_sent("and goes on")
    once_each(world)
    assert all("@" not in repr(message.value()) for message in world.messages())


def test_the_poll_takes_over_while_the_connector_is_down_and_nothing_is_sent_twice_once_it_has_caught_up(
    world,
):
    with world.running("worker", "cdc", **TOLD):
        world.insert(1)
        world.shop.until(world.caught_up, "the consumer has read every message")
        with world.connector_stopped():
            world.insert_untold(10)
            with world.running("standby"):
                world.until_sent("the standby has polled")
        world.shop.until(world.caught_up, "it has caught up")
        world.insert(1)
        world.until_sent("whatever it told of before was looked at")
    once_each(world)


def test_a_killed_consumer_is_replaced_and_each_mail_is_sent_once(world):
    with world.running("worker", "cdc", "cdc:2", **TOLD):
        for _ in range(20):
            world.insert(3)
            time.sleep(0.05)
        world.shop.kill("cdc")
        world.insert(3)
        world.until_sent("the other one has woken the worker for the rest")
        world.shop.until(world.caught_up, "the other one has read every message")
    once_each(world)


def test_all_triggers_at_once_send_each_mail_once(world):
    before = dict(world.shop.accepted())
    with world.running("web", "worker", "beat", "standby", "cdc", "cdc:2"):
        for number in range(20):
            world.shop.pay(world.shop.place(f"p{number}@example.com"))
            world.insert(2)
        world.mails += 20
        world.until_sent("all are sent")
        world.shop.until(world.caught_up, "both consumers have read every message")
    accepted = world.shop.accepted()
    assert {id: times for id, times in accepted.items() if id not in before} == dict.fromkeys(
        set(accepted) - set(before), 1
    )
    assert len(accepted) - len(before) == 60


def test_postgresql_restarts_and_a_slot_that_was_lost_is_made_anew_after_one_statement(world):
    with world.running("worker", "cdc", **TOLD):
        world.shop.restart_postgres_hard()
        world.shop.until(lambda: world.slot()[1], "it follows again")
        world.insert(3)
        world.until_sent("Debezium tells of rows after a restart")
        world.connect.call("PUT", "/connectors/orderpost/stop")
        world.shop.until(lambda: not world.slot()[1], "it has stopped")
        _write_more_than_a_slot_may_hold(world)
        world.shop.until(lambda: world.slot()[0] == "lost", "the slot is lost, not the disk")
        world.connect.call("PUT", "/connectors/orderpost/resume")
        world.shop.query(f"SELECT pg_drop_replication_slot('{SLOT}')")
        world.shop.until(
            lambda: world.shop.query(
                f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{SLOT}' AND active"
            ),
            "it has made a new one",
            seconds=90,
        )
        world.insert(3)
        world.until_sent("Debezium tells of rows through a new slot")


def _write_more_than_a_slot_may_hold(world: World) -> None:
    world.shop.query("CREATE TABLE ballast (text text)")
    for _ in range(8):
        world.shop.query("INSERT INTO ballast SELECT repeat('x', 1000) FROM generate_series(1, 10000)")
        world.shop.query("SELECT pg_switch_wal()")
        world.shop.query("CHECKPOINT")
    world.shop.query("DROP TABLE ballast")
