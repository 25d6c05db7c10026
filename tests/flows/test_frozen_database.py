"""PostgreSQL alive in name only: its kernel acknowledges, and no answer comes."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pytest
import requests

from tests.kit.servers import frozen
from tests.kit.shop import PATIENT, Shop
from tests.kit.waiting import PATIENCE

pytestmark = pytest.mark.flow

#: What the contract says, and what a loaded machine may add to it.
PROMISED, GRACE = 5.0, 5.0
#: A statement's deadline has passed; or a new connection's, after a health check's; or pgbouncer's own.
GIVEN_UP = (
    "did not answer within",
    "another thread is trying to connect",
    "connection timeout expired",
    "server login has been failing",
    "query_wait_timeout",
)
PASSWORD = "not-secret-flows-only"
ORDER = {"user_id": str(uuid.uuid4()), "email": "ann@example.com", "total_amount": 4200}


@contextlib.contextmanager
def silent(shop: Shop, how: str) -> Iterator[None]:
    """Let the database not answer: frozen, or behind a network that drops packets."""
    if how == "frozen":
        with frozen(shop.postgres):
            yield
    else:
        assert shop.proxy is not None
        shop.proxy.drop()
        try:
            yield
        finally:
            shop.proxy.forward()


def log_in(shop: Shop) -> str:
    """Return the cookie of a session in the admin."""
    login = f"http://127.0.0.1:{shop.port}/admin/login/"
    with requests.Session() as session:
        session.get(login, timeout=PATIENCE)
        typed = {"username": "ada", "password": PASSWORD, "csrfmiddlewaretoken": session.cookies["csrftoken"]}
        session.post(login, data=typed, timeout=PATIENCE, allow_redirects=False)
        return str(session.cookies["sessionid"])


class Ask(NamedTuple):
    """A request to be sent."""

    method: str
    path: str
    headers: Mapping[str, str] = {}


def at_once(shop: Shop, asks: Sequence[Ask]) -> list[tuple[requests.Response, float]]:
    """Answers to requests that are sent together, each with its seconds."""
    answers: list[tuple[requests.Response, float]] = []

    def send(ask: Ask) -> None:
        began = time.monotonic()
        url = f"http://127.0.0.1:{shop.port}{ask.path}"
        headers = {name: str(value) for name, value in {**shop.session.headers, **ask.headers}.items()}
        answer = requests.request(ask.method, url, timeout=PATIENCE, headers=headers)
        answers.append((answer, time.monotonic() - began))

    threads = [threading.Thread(target=send, args=(ask,)) for ask in asks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == len(asks)
    return answers


@pytest.mark.parametrize("how", ["frozen", pytest.param("dropped packets", marks=pytest.mark.drill)])
def test_a_database_that_does_not_answer_gives_503_in_time_and_nothing_twice_afterwards(how, monkeypatch):
    monkeypatch.setenv("DJANGO_SUPERUSER_PASSWORD", PASSWORD)
    with Shop(proxied=how != "frozen", DATABASE_TIMEOUT="4", **PATIENT) as shop:
        shop.manage("createsuperuser", "--noinput", "--username", "ada", "--email", "ada@example.com")
        shop.start("web", "worker", "beat", "standby", "relay", "consumer")
        cookie = {"Cookie": f"sessionid={log_in(shop)}"}
        orders = [shop.place(f"u{n}@example.com") for n in range(8)]
        keys = {order: {"Idempotency-Key": str(uuid.uuid4())} for order in orders}
        pays = [Ask("POST", f"/api/v1/orders/{order}/pay", keys[order]) for order in orders]
        reads = [Ask("GET", f"/api/v1/orders/{order}") for order in orders]
        pages = [Ask("GET", "/readyz"), Ask("GET", "/metrics"), Ask("GET", "/admin/orders/order/", cookie)]
        assert {answer.status_code for answer, _ in at_once(shop, pages)} == {200}
        with silent(shop, how):
            # More than twice as many as the process has threads.
            answers = at_once(shop, [*pays, *reads, *(page for page in pages if page.path != "/metrics")])
            assert {answer.status_code for answer, _ in answers} == {503}
            assert all(answer.headers["Retry-After"] for answer, _ in answers)
            assert max(seconds for _, seconds in answers) < PROMISED + GRACE
            assert at_once(shop, [Ask("GET", "/healthz")])[0][0].ok
            assert "orderpost_database_up 0.0" in at_once(shop, [Ask("GET", "/metrics")])[0][0].text
            for name in ("beat", "standby", "relay"):
                shop.until(
                    lambda name=name: any(text in shop.log(name) for text in GIVEN_UP),
                    f"{name} has given its wait up",
                )

        def all_paid() -> bool:
            return {answer.status_code for answer, _ in at_once(shop, pays)} == {200}

        shop.until(all_paid, "each repeated request is answered")
        shop.until(lambda: shop.all_sent(8), "each order's mail is sent")
        assert shop.doubled() == []
        shop.until(
            shop.all_published,
            "the relay goes on",
        )


@pytest.mark.drill
def test_frozen_backends_are_left_and_new_ones_do_their_work():
    with Shop(DATABASE_TIMEOUT="4", POLL_INTERVAL="2") as shop:
        shop.start("web", "worker", "beat", "standby", "consumer")
        shop.pay(shop.place())
        shop.until(lambda: shop.all_sent(1), "all works")
        with shop.backends_frozen() as count:
            assert count >= (1 if shop.pooler else 3), "the web's, the worker's, the standby's"

            def paid() -> bool:
                answers = [shop.call("POST", "/orders", json=ORDER)]
                if answers[0].status_code == 201:
                    answers.append(shop.call("POST", f"/orders/{answers[0].json()['id']}/pay"))
                assert {answer.status_code for answer in answers} <= {200, 201, 503}
                return bool(answers[-1].status_code == 200)

            shop.until(paid, "an order is paid over new sessions")
            shop.until(lambda: sum(shop.accepted().values()) >= 2, "and its mail is sent")
        shop.until(lambda: {status for (status,) in shop.rows()} == {"sent"}, "nothing is left")
        assert set(shop.accepted().values()) == {1}
