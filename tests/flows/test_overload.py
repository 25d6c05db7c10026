"""More requests than a web process can answer: it refuses the rest early, and loses nothing it accepted."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest
import requests

from config.web import THREADS
from local.machine import HOST
from tests.kit.shop import Shop
from tests.kit.waiting import PATIENCE

pytestmark = pytest.mark.flow

CLIENTS = 24
#: An order's INSERT takes this long, so the process places at most `THREADS` in that time.
SLOW = """
    CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_sleep(0.2); RETURN NEW; END $$;
    CREATE TRIGGER slow BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION slow();
"""
FAST = "DROP FUNCTION slow() CASCADE"


@pytest.fixture
def shop(shared_shop: Shop) -> Shop:
    return shared_shop


@contextmanager
def slow_orders(shop: Shop) -> Iterator[None]:
    shop.query(SLOW)
    try:
        yield
    finally:
        shop.query(FAST)


def place(shop: Shop, key: str) -> requests.Response:
    return requests.post(
        f"http://{HOST}:{shop.port}/api/v1/orders",
        json={
            "user_id": str(uuid.UUID(int=1)),
            "email": "ann@example.com",
            "total_amount": 4200,
            "reference": key,
        },
        headers={"Authorization": shop.session.headers["Authorization"], "Idempotency-Key": key},
        timeout=PATIENCE,
    )


def assert_refused(answer: requests.Response) -> None:
    assert answer.status_code == 503, answer.text
    assert answer.json()["type"] == "urn:orderpost:problem:overloaded"
    assert int(answer.headers["Retry-After"]) >= 1
    assert int(answer.headers["Content-Length"]) == len(answer.content)  # a simple client reads no chunks


def placed(shop: Shop) -> Counter[str]:
    return Counter(reference for (reference,) in shop.query("SELECT reference FROM orders"))


def test_all_but_the_requests_under_way_are_refused_while_the_database_is_locked_and_then_all_are_placed(
    shop: Shop,
) -> None:
    keys = [f"locked-{number}" for number in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        with psycopg.connect(shop.database_url) as holder:
            holder.execute("LOCK TABLE orders IN SHARE MODE")
            answers = {key: pool.submit(place, shop, key) for key in keys}
            shop.until(
                lambda: sum(answer.done() for answer in answers.values()) == CLIENTS - THREADS,
                "the others are refused",
            )
            for answer in answers.values():
                if answer.done():
                    assert_refused(answer.result())
            assert shop.session.get(f"http://{HOST}:{shop.port}/healthz", timeout=PATIENCE).status_code == 200
            holder.rollback()
        statuses = Counter(answer.result().status_code for answer in answers.values())
    assert statuses == {201: THREADS, 503: CLIENTS - THREADS}
    assert placed(shop) == dict.fromkeys((key for key in keys if answers[key].result().ok), 1)
    for key in keys:
        assert place(shop, key).status_code == 201
    assert placed(shop) == dict.fromkeys(keys, 1)


def test_an_overload_ends_without_help_and_every_accepted_order_is_there(shop: Shop) -> None:
    def shop_for(client: int) -> int:
        """Place three orders, and repeat each refused one under its key. Return the number of refusals."""
        refused = 0
        for number in range(3):
            while not (answer := place(shop, f"slow-{client}-{number}")).ok:
                assert_refused(answer)
                refused += 1
            assert "Idempotency-Replayed" not in answer.headers
        return refused

    with slow_orders(shop), ThreadPoolExecutor(CLIENTS) as pool:
        refused = [*pool.map(shop_for, range(CLIENTS))]
    assert sum(refused) > 0
    assert placed(shop) == {f"slow-{client}-{number}": 1 for client in range(CLIENTS) for number in range(3)}
    assert place(shop, "afterwards").status_code == 201
