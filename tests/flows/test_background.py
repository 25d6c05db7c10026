"""The local run's background process: relay, consumer, standby and partitions in one, killed and stopped."""

from __future__ import annotations

import pytest
import redis

from tests.flows.shop import PAYMENT, Shop, payment_event


@pytest.mark.drill
def test_a_killed_background_process_loses_no_event_and_no_mail_and_has_each_effect_once():
    with Shop() as shop:
        shop.start("web", "background")
        orders: list[str] = []
        paid = "SELECT count(*) FROM orders WHERE status = 'paid'"
        with redis.Redis.from_url(shop.valkey.url) as client:
            for n in range(30):
                orders.append(shop.place(f"c{n}@example.com"))
                for _ in range(2):
                    client.xadd(PAYMENT, payment_event(orders[-1]))
                if n % 10 == 9:
                    shop.until(lambda: shop.query(paid)[0][0] > len(orders) - 10, "it works")
                    shop.kill("background")
                    shop.start("background")
            shop.until(lambda: shop.query(paid) == [(30,)], "the consumer processed every payment")
            shop.until(lambda: shop.all_sent(30), "the standby sent every mail: no worker runs")
            left = "SELECT count(*) FROM outbox_events WHERE published_at IS NULL"
            shop.until(lambda: shop.query(left) == [(0,)], "the relay published every event")
            assert shop.query("SELECT count(*) FROM orders WHERE version <> 2") == [(0,)]
        shop.until(
            lambda: shop.query("SELECT 1 FROM heartbeats WHERE name = 'partitions'") == [(1,)],
            "partitions were kept",
        )
        assert shop.terminate("background", seconds=15)
        assert "a part of the background process" not in shop.log("background")


@pytest.mark.drill
def test_all_its_parts_end_when_one_does_so_that_the_supervisor_starts_them_again():
    with Shop() as shop:
        # The app's role may not make partitions: that part says so and ends.
        shop.query("CREATE ROLE stranger LOGIN")
        shop.query("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO stranger")
        process = shop.postgres.url.replace("orderpost@", "stranger@", 1)
        shop.start("background", PARTITION_DATABASE_URL=process)
        assert shop.processes["background"].wait(60) == 1
        assert "a part of the background process ended, so all do" in shop.log("background")
