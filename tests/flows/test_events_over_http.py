"""The saga and other systems' orders over HTTP alone, and with half of the events over a broker.

Each event comes twice, shuffled, in lists with bad events, while web processes and consumers are killed. The
drills take 500 orders, and the whole suite takes 40.
"""

from __future__ import annotations

import contextlib
import json
import random
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import confluent_kafka
import pytest
import redis

from tests.kit import kafka
from tests.kit.events import INSUFFICIENT, PAID, REFUNDED, RESERVED, SHOP, cancellation, envelope, story
from tests.kit.shop import PATIENT, Shop
from tests.kit.waiting import until

pytestmark = pytest.mark.flow
#: The e-mails that shops' stories and our own orders owe, by `NOTIFY_ON`'s default.
MAILS = ["order.paid", "order.part_refunded", "order.completed", "order.refunded", "order.cancelled"]
#: No worker is killed, so each e-mail has to arrive once.
SETTINGS: dict[str, Any] = {"ORDER_SOURCES": SHOP, **PATIENT}
Event = dict[str, Any]


def bad_events(chance: random.Random) -> list[Any]:
    """Return events that are refused however often they come. None has the id of a good one."""
    order = {"orderId": str(uuid.uuid4())}
    return chance.sample(
        [
            envelope(PAID, order),
            envelope(PAID, order) | {"eventId": "none"},
            envelope("payment.payment.lost.v1", order),
            envelope("order.command.cancel_order.v1", order),
            story(str(uuid.uuid4()))[0] | {"source": "stranger", "metadata": {"sequence": 1}},
            {"nothing": None},
            "text",
            None,
        ],
        3,
    )


def wait_for_answers(answers: list[Future[list[str]]], *, more_than: int) -> None:
    until(lambda: sum(answer.done() for answer in answers) > more_than, "some lists are answered")


def wait_until_processed(shop: Shop, events: list[Event]) -> None:
    ids = ",".join(event["eventId"] for event in events)
    counted = f"SELECT count(*) FROM processed_events WHERE event_id = ANY('{{{ids}}}')"
    shop.until(lambda: shop.query(counted) == [(len(events),)], "every event is processed")


def send_all(
    shop: Shop, events: list[Event], chance: random.Random, *, kills: int, victims: list[str]
) -> Counter[str]:
    """Send events in lists of about 40 with three bad ones in each, and kill the victims meanwhile."""
    lists: list[list[Any]] = []
    for start in range(0, len(events), 40):
        mixed = [*events[start : start + 40], *bad_events(chance)]
        chance.shuffle(mixed)
        lists.append(mixed)
    results: Counter[str] = Counter()
    with ThreadPoolExecutor(4) as senders:
        answers: list[Future[list[str]]] = [senders.submit(shop.send_events, events) for events in lists]
        for number in range(kills):
            wait_for_answers(answers, more_than=number * len(answers) // (kills + 1))
            for name in victims:
                shop.kill(name)
            shop.start(*victims)
        for events_sent, answer in zip(lists, answers, strict=True):
            outcomes = answer.result()
            assert len(outcomes) == len(events_sent)
            results.update(outcomes)
    assert results["refused"] == 3 * len(lists), results  # and no good one
    return results


@contextlib.contextmanager
def shop_with(broker: str) -> Iterator[tuple[Shop, Any]]:
    """Yield a shop and a function that publishes an event to its broker."""
    if broker == "kafka":
        with (
            kafka.cluster() as cluster,
            Shop(**SETTINGS, EVENT_TRANSPORT="kafka", KAFKA_BOOTSTRAP_SERVERS=cluster.url) as shop,
        ):
            shop.manage("make_topics", *kafka.ONE_BROKER_OPTIONS)
            producer = confluent_kafka.Producer({"bootstrap.servers": cluster.url, "acks": "all"})

            def produce(event: Event) -> None:
                producer.produce(event["eventType"], json.dumps(event), event["data"]["orderId"])
                producer.poll(0)

            yield shop, produce
            assert producer.flush(30) == 0
        return
    with Shop(**SETTINGS) as shop, redis.Redis.from_url(shop.valkey.url) as client:

        def add(event: Event) -> None:
            client.xadd(event["eventType"], {"key": event["data"]["orderId"], "value": json.dumps(event)})

        yield shop, add


def run(broker: str, *, orders: int, kills: int) -> None:
    """Play the stories of shops' orders and the saga of our own, and check that each effect happened once."""
    chance = random.Random(36)
    stories = [(story if number % 2 else cancellation)(str(uuid.uuid4())) for number in range(orders // 2)]
    with shop_with(broker or "redis") as (shop, publish):
        consumers = ["consumer:1", "consumer:2"] if broker else []
        shop.start("web", "worker", "relay", *consumers)
        own = [shop.place(f"ann-{number}@example.com") for number in range(orders - len(stories))]
        lost = own[::10]  # whose stock is missing after the payment
        first = [event for events in stories for event in events]
        first += [envelope(PAID, {"orderId": order}) for order in own]
        first += [envelope(RESERVED, {"orderId": order}) for order in own if order not in lost]
        second = [envelope(INSUFFICIENT, {"orderId": order}) for order in lost]
        third = [envelope(REFUNDED, {"orderId": order}) for order in lost]
        for wave in (first, second, third):
            chance.shuffle(wave)
            over_broker = wave[: len(wave) // 2] if broker else []
            for event in over_broker * 2:
                publish(event)
            # Half of what the broker brings also comes over HTTP, at the same time.
            arrivals = wave[len(over_broker) // 2 :] * 2
            chance.shuffle(arrivals)
            killed = kills if wave is first else 0
            results = send_all(shop, arrivals, chance, kills=killed, victims=["web", *consumers[:1]])
            assert results["processed"] + results["repeated"] == len(arrivals)
            wait_until_processed(shop, wave)
        owed = Counter(
            f"{event['data']['orderId']}:{name}:{event['metadata']['sequence']}"
            for events in stories
            for event in events
            if (name := event["eventType"].removeprefix("order.").removesuffix(".v1")) in MAILS
        )
        keys = Counter(key for (key,) in shop.rows("idempotency_key") if key.split(":")[0] not in own)
        assert keys == owed
        ours = Counter(
            key.split(":")[1] for (key,) in shop.rows("idempotency_key") if key.split(":")[0] in own
        )
        assert ours == {"order.paid": len(own), "order.cancelled": len(lost), "order.refunded": len(lost)}
        states = dict(shop.query("SELECT id::text, status || version FROM orders WHERE source <> ''"))
        assert states == {
            story[0]["data"]["orderId"]: f"{story[-1]['data']['status']}{len(story)}" for story in stories
        }
        count = sum(owed.values()) + ours.total()
        shop.until(lambda: shop.all_sent_or_overtaken(count), "every e-mail is sent or old news")
        overtaken = [event for event, status in shop.rows("event_type, status") if status == "discarded"]
        assert set(overtaken) <= {"order.paid"}
        assert shop.doubled() == [] and len(shop.accepted()) == count - len(overtaken)
        assert shop.query("SELECT status, count(*) FROM orders WHERE source = '' GROUP BY 1 ORDER BY 1") == [
            ("cancelled", len(lost)),
            ("confirmed", len(own) - len(lost)),
        ]
        assert shop.query("SELECT error FROM inbound_dead_letters") == []


def test_web_processes_that_are_killed_in_lists_lose_no_event_and_repeat_no_effect():
    run("", orders=40, kills=2)


@pytest.mark.drill
@pytest.mark.parametrize("broker", ["", "redis", "kafka"])
def test_each_of_500_orders_events_has_one_effect_over_http_and_a_broker(broker):
    run(broker, orders=500, kills=6)
