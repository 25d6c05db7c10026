"""Orders of another system over real processes: consumers that get killed, events shuffled and repeated."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections import Counter
from typing import Any

import pytest
import redis

from tests.flows.shop import Shop
from tests.orders.external import SHOP, cancellation, story

pytestmark = [pytest.mark.flow, pytest.mark.drill]
MAILS = ["order.paid", "order.part_refunded", "order.completed", "order.refunded", "order.cancelled"]


def test_consumers_that_are_killed_lose_no_event_of_another_systems_orders_and_send_each_mail_once():
    chance = random.Random(11)
    stories = [(story if number % 2 else cancellation)(str(uuid.uuid4())) for number in range(120)]
    events: list[dict[str, Any]] = [event for events in stories for event in events]
    arrivals = [*events, *chance.choices(events, k=len(events) // 4)]
    chance.shuffle(arrivals)
    owed = Counter(
        f"{event['data']['orderId']}:{name}:{event['metadata']['sequence']}"
        for event in events
        if (name := event["eventType"].removeprefix("order.").removesuffix(".v1")) in MAILS
    )
    with Shop(ORDER_SOURCES=SHOP) as shop, redis.Redis.from_url(shop.valkey.url) as client:
        shop.start("worker", "consumer:1", "consumer:2", "relay")
        for start in range(0, len(arrivals), 60):
            for event in arrivals[start : start + 60]:
                fields = {"key": event["data"]["orderId"], "value": json.dumps(event)}
                client.xadd(event["eventType"], fields)
            victim = f"consumer:{chance.randint(1, 2)}"
            shop.kill(victim)
            shop.start(victim)
            time.sleep(1)
        shop.until(lambda: len(shop.rows()) == len(owed), "every e-mail is written")
        shop.until(lambda: shop.all_sent(len(owed)), "every e-mail is sent")
        assert Counter(key for (key,) in shop.rows("idempotency_key")) == owed
        assert set(shop.accepted().values()) == {1}
        found = {
            str(id): (status, version)
            for id, status, version in shop.query("SELECT id, status, version FROM orders")
        }
        assert found == {one[0]["data"]["orderId"]: (one[-1]["data"]["status"], len(one)) for one in stories}
        assert shop.query("SELECT 1 FROM dead_events") == shop.query("SELECT 1 FROM outbox_events") == []
