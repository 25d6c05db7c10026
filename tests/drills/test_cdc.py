"""The Kafka that only consume_cdc uses is killed: its trigger is gone until it is back, and nothing else."""

from __future__ import annotations

import json
import uuid

import confluent_kafka
import pytest

from tests.kit import kafka
from tests.kit.shop import Shop

pytestmark = pytest.mark.drill
MAILS = "orderpost.public.email_notifications"
GROUP_READS = "SELECT 1 FROM heartbeats WHERE name = 'cdc'"


def report_row(broker: kafka.Cluster) -> None:
    """Write what Debezium does about an e-mail."""
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.url})
    producer.produce(MAILS, json.dumps({"id": str(uuid.uuid4())}))
    assert producer.flush(20) == 0


def test_a_dead_kafka_that_only_cdc_uses_stops_nothing_but_the_trigger():
    with kafka.cluster() as broker, Shop(KAFKA_BOOTSTRAP_SERVERS=broker.url) as shop:
        report_row(broker)  # the broker makes the topic
        shop.start("web", "worker", "cdc", "relay", POLL_INTERVAL="3600")
        shop.until(lambda: shop.query(GROUP_READS), "consume_cdc works")
        shop.pay(shop.place())
        shop.until(lambda: shop.all_sent(1), "the fast path sends")

        def reported() -> bool:
            report_row(broker)
            return bool(shop.all_sent(2))

        shop.insert_mails(1)
        shop.until(reported, "a reported row is sent, though nobody polls")
        broker.kill(1)
        shop.until(lambda: "changes are not seen: the broker is away" in shop.log("cdc"), "it says so once")
        for number in range(5):
            shop.pay(shop.place(f"during{number}@example.com"))
        shop.until(lambda: shop.all_sent(7), "the fast path sends without Kafka")
        shop.until(shop.all_published, "the relay publishes to Valkey")
        shop.insert_mails(3)
        shop.start("beat")
        shop.until(lambda: shop.all_sent(10), "the poll finds what other programs wrote")
        shop.terminate("beat", seconds=20)
        assert shop.processes["cdc"].poll() is None, "it waits for the broker"
        broker.start(1)
        broker.wait_until_all_answer()

        def reported_again() -> bool:
            report_row(broker)
            return bool(shop.all_sent(11))

        shop.insert_mails(1)
        shop.until(reported_again, "the trigger works again", seconds=90)
        assert set(shop.accepted().values()) == {1}
        assert shop.log("cdc").count("changes are not seen") == 1
