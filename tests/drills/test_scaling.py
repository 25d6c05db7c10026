"""Relays and consumers come and go under load, on each broker: nothing lost or doubled, order kept. Drills.

What a process that is gone left is taken over within 5 s. Measured from the commit to the effect of each
event that was written around a step, at a rate that a slow machine keeps up with.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest

from tests.kit.many_events import faults, record, recorded, shop_on_kafka, tell, write_events, writing
from tests.kit.recorder import TABLE
from tests.kit.shop import Shop

pytestmark = [pytest.mark.flow, pytest.mark.drill]

#: What is promised for a takeover, and what a loaded machine may add to it.
PROMISED, GRACE = 5.0, 10.0
PAUSE, PER_SECOND = 7.0, 20  # seconds between two steps, events
AGGREGATES = 40


@contextlib.contextmanager
def shop_on(transport: str) -> Iterator[Shop]:
    if transport == "kafka":
        with shop_on_kafka(brokers=1, KAFKA_OPTIONS='{"session.timeout.ms": 3000}') as (shop, _):
            yield shop
        return
    with Shop() as shop:
        shop.query(TABLE)
        yield shop


def latest(shop: Shop, since: float, until: float) -> float:
    """Return the longest time from commit to effect of events written in a span of the machine's time."""
    rows = shop.query(
        "SELECT max(at - created_at) FROM recorded JOIN outbox_events AS e ON e.id = event_id"
        f" WHERE created_at >= to_timestamp({since}) AND created_at < to_timestamp({until})"
    )
    return float(rows[0][0].total_seconds())


@pytest.mark.parametrize("transport", ["redis", "kafka"])
def test_relays_and_consumers_come_and_go_under_load(transport):
    with shop_on(transport) as shop:
        shop.start("relay:1")
        record(shop, "recorder:1")
        write_events(shop, first=0, count=AGGREGATES, aggregates=AGGREGATES)
        shop.until(lambda: recorded(shop) == AGGREGATES, "the first of each works")  # a start is no takeover
        steps = {
            "a relay more": lambda: shop.start("relay:2"),
            "a consumer more": lambda: record(shop, "recorder:2"),
            "a third of each": lambda: (shop.start("relay:3"), record(shop, "recorder:3")),
            "a relay stops": lambda: shop.terminate("relay:1", seconds=20),
            "a consumer stops": lambda: shop.terminate("recorder:1", seconds=20),
            "a relay is killed": lambda: shop.kill("relay:2"),
            "a consumer is killed": lambda: shop.kill("recorder:2"),
        }
        seconds = PAUSE * (len(steps) + 1)
        total = PER_SECOND * int(seconds)
        writer = writing(shop, total=total, seconds=seconds, batch=4, aggregates=AGGREGATES, first=AGGREGATES)
        time.sleep(PAUSE)
        times = []
        for step in steps.values():
            times.append(time.time())
            step()
            time.sleep(max(0.0, times[-1] + PAUSE - time.time()))
        writer.join()
        shop.until(lambda: recorded(shop) == AGGREGATES + total, "all are recorded")
        ends = [*times[1:], time.time()]
        waits = {
            name: round(latest(shop, at - 0.5, end - 0.5), 2)
            for name, at, end in zip(steps, times, ends, strict=True)
        }
        tell(shop, transport=transport, **waits)
        assert faults(shop) == (0, 0, 0, 0, 0, 0)
        assert max(waits.values()) < PROMISED + GRACE, waits
