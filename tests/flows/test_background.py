"""The local run's background process: relay, consumer, standby and partitions in one, killed and stopped."""

from __future__ import annotations

import pytest
import redis

from tests.kit.shop import PAYMENT, Shop, payment_event


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
def test_a_part_that_fails_starts_again_and_the_others_work_meanwhile():
    with Shop() as shop:
        # The app's role may not make partitions: that part says so and ends.
        shop.query("CREATE ROLE stranger LOGIN")
        shop.query("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO stranger")
        stranger = shop.postgres.url.replace("orderpost@", "stranger@", 1)
        shop.start("web", "background", PARTITION_DATABASE_URL=stranger)
        again = "a part of the background process starts again"
        shop.until(lambda: shop.log("background").count(again) >= 3, "the part has failed three times")
        order = shop.place()
        with redis.Redis.from_url(shop.valkey.url) as client:
            client.xadd(PAYMENT, payment_event(order))
        shop.until(lambda: shop.all_sent(1), "the consumer and the standby work")
        left = "SELECT count(*) FROM outbox_events WHERE published_at IS NULL"
        shop.until(lambda: shop.query(left) == [(0,)], "the relay works")
        shop.query("ALTER ROLE stranger SUPERUSER")
        made = "SELECT count(*) FROM heartbeats WHERE name = 'partitions'"
        shop.until(lambda: shop.query(made) == [(1,)], "the part works once it can")
        assert shop.terminate("background", seconds=15)


@pytest.mark.drill
def test_entries_of_unusual_ids_stop_nothing_and_no_part_fails():
    with Shop() as shop:
        shop.start("web", "background")
        orders = [shop.place(f"c{n}@example.com") for n in range(4)]
        with redis.Redis.from_url(shop.valkey.url) as client:
            client.xadd(PAYMENT, payment_event(orders[0]), id="0-1")
            client.xadd(PAYMENT, payment_event(orders[1]), id="1763770000000000-0")
            client.xadd(PAYMENT, payment_event(orders[2]), id="18446744073709551615-1")
            client.xadd(PAYMENT, payment_event(orders[3]))
        dead = "SELECT count(*) FROM dead_events"
        shop.until(lambda: shop.query(dead) == [(1,)], "0-1 is older than the inbox remembers")
        shop.until(lambda: shop.all_sent(3), "every other payment has its e-mail")
        assert "a part of the background process" not in shop.log("background")
