"""Three real brokers that get killed while events flow: what is consumed equals the outbox, once, in order.

Drills, minutes each. One broker, in every `make test`: tests/brokers/test_kafka.py.
"""

from __future__ import annotations

import time

import pytest

from tests.kit.many_events import TOPICS, faults, record, recorded, shop_on_kafka, tell, writing

pytestmark = [pytest.mark.flow, pytest.mark.drill]


def test_ten_thousand_events_pass_five_killed_leaders_and_a_rebalance():
    with shop_on_kafka() as (shop, cluster):
        shop.start("relay:1", "relay:2")
        record(shop, "recorder:1")
        record(shop, "recorder:2")
        for kill in range(5):
            writer = writing(shop, total=2000, seconds=15, first=kill * 2000)
            while (victim := cluster.leader(TOPICS[kill % 3], kill % 6)) <= 0:
                time.sleep(0.2)
            cluster.kill(victim)
            if kill == 2:  # a rebalance in the middle, while a broker is down
                record(shop, "recorder:3")
                shop.kill("recorder:1")
            cluster.start(victim)
            writer.join()
        shop.until(lambda: recorded(shop) == 10_000, "all are recorded")
        tell(shop)
        assert faults(shop) == (0, 0, 0, 0, 0, 0)


def test_with_two_of_three_brokers_killed_nothing_acknowledged_is_lost_and_it_goes_on_after():
    with shop_on_kafka() as (shop, cluster):
        shop.start("relay")
        record(shop, "recorder:1")
        writer = writing(shop, total=3000, seconds=30)
        time.sleep(5)
        cluster.kill(1, 2)
        shop.until(
            lambda: "broker away" in shop.log("relay") or "topic unavailable" in shop.log("relay"),
            "the relay noticed",
        )
        writer.join()
        assert not shop.all_published()
        cluster.start(1, 2)
        shop.until(lambda: recorded(shop) == 3000, "all are recorded")
        tell(shop)
        assert faults(shop) == (0, 0, 0, 0, 0, 0)
