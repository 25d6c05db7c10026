"""The promise under kill -9: real processes, named after the line where each dies."""

from __future__ import annotations

import contextlib
import signal
import threading
import time

import pytest
import redis
import requests

from config.web import WORKERS
from notifications.wake import MOST_WAITING
from tests.kit.servers import frozen
from tests.kit.shop import PATIENT, Shop
from tests.kit.waiting import PATIENCE

pytestmark = pytest.mark.flow


def test_a_payment_reaches_the_provider_by_the_fast_path_alone(shared_shop):
    shop = shared_shop
    shop.pay(shop.place())
    shop.until(lambda: shop.all_sent(1), "the mail is sent")
    (notification,) = shop.call("GET", "/notifications").json()["results"]
    assert list(shop.accepted().items()) == [(notification["id"], 1)]
    (mail,) = shop.sandbox.mails
    assert mail.message_id == notification["provider_message_id"]


@pytest.mark.parametrize("how", ["frozen", pytest.param("killed", marks=pytest.mark.drill)])
def test_a_broker_that_is_frozen_or_dead_costs_a_request_nothing_and_the_standby_sends(polling_shop, how):
    shop = polling_shop
    shop.kill("worker")
    shop.start("worker", "standby", **PATIENT)
    orders = [shop.place() for _ in range(10)]
    shop.pay(orders[0])
    shop.until(lambda: shop.all_sent(1), "all works")
    if how == "killed":
        shop.valkey.kill()
    with frozen(shop.valkey) if how == "frozen" else contextlib.nullcontext():
        began = time.monotonic()
        for order in orders[1:]:
            shop.pay(order)
        # A busy machine may take long for nine requests, but a minute of redis-py for each takes longer.
        assert time.monotonic() - began < PATIENCE
        shop.until(lambda: shop.all_sent(10), "the standby has sent the mails")
    assert set(shop.accepted().values()) == {1}


def test_a_worker_killed_between_claim_and_send_loses_nothing(polling_shop):
    shop = polling_shop
    shop.sandbox.fail(kind="hang", seconds=30, times=1)
    shop.pay(shop.place())
    shop.until(lambda: shop.rows() == [("processing",)], "the mail is claimed")
    shop.kill("worker")
    shop.sandbox.heal()  # the worker may have died before its request came
    assert shop.accepted().get(str(shop.rows("id")[0][0]), 0) == 0
    shop.start("worker")
    shop.until(lambda: shop.all_sent(1), "recovery has sent the mail")
    assert list(shop.accepted().values()) == [1]
    assert shop.rows("retry_count") == [(1,)]


def test_a_worker_killed_between_send_and_settle_doubles_only_what_was_in_flight(polling_shop):
    shop = polling_shop
    shop.sandbox.fail(kind="accept_then_hang", seconds=30, times=1)
    shop.pay(shop.place())
    shop.until(lambda: sum(shop.accepted().values()) == 1, "the provider has accepted the mail")
    shop.kill("worker")
    assert shop.rows() == [("processing",)]
    shop.start("worker")
    shop.until(lambda: shop.all_sent(1), "recovery has settled the mail")
    assert list(shop.accepted().values()) == [2]


def test_web_killed_after_commit_before_the_fast_path_loses_nothing(polling_shop):
    shop = polling_shop
    for name in ("web", "worker", "beat"):
        shop.kill(name)
    shop.start("web", REDIS_URL="redis://127.0.0.1:1/0")  # a web process whose wake-ups go nowhere
    shop.pay(shop.place())
    shop.kill("web")
    assert shop.rows() == [("pending",)]
    shop.start("worker", "beat")
    shop.until(lambda: shop.all_sent(1), "the poll has sent the mail")


def test_postgresql_killed_under_load_loses_nothing_that_was_acknowledged(polling_shop):
    shop = polling_shop
    shop.start("standby")
    orders = [shop.place(f"u{n}@example.com") for n in range(80)]
    acknowledged: list[str] = []
    refused: list[str] = []

    def work(mine: list[str]) -> None:
        for order in mine:
            try:
                answer = shop.call("POST", f"/orders/{order}/pay")
            except requests.RequestException:
                continue
            (acknowledged if answer.status_code == 200 else refused).append(order)
            time.sleep(0.02)

    threads = [threading.Thread(target=work, args=(orders[n::4],)) for n in range(4)]
    for thread in threads:
        thread.start()
    shop.until(lambda: len(acknowledged) >= 8, "some are acknowledged")
    shop.restart_postgres_hard()
    for thread in threads:
        thread.join(PATIENCE)
    # A pooler that was refused tries the server again after a second.
    shop.until(lambda: shop.call("GET", "/orders").status_code == 200, "the API answers again")
    late = shop.place("late@example.com")
    shop.pay(late)
    wanted = {*acknowledged, late}

    def arrived():
        sent = {str(order) for order, status in shop.rows("order_id, status") if status == "sent"}
        return wanted <= sent

    shop.until(arrived, "every acknowledged change's mail is sent")
    for order in acknowledged:
        assert shop.call("GET", f"/orders/{order}").json()["status"] == "paid"


#: A line of beat's log for each poll.
POLL = "Sending due task poll the outbox"


@pytest.mark.drill
def test_two_beats_poll_each_email_leaves_once_and_one_of_them_goes_on_alone():
    beats = ("beat", "beat:2")
    with Shop(FAST_PATH="off", POLL_INTERVAL="0.5") as shop:
        shop.start("web", "worker", "worker:2", *beats)
        polls = {name: shop.log(name).count(POLL) for name in beats}
        for number in range(20):
            shop.pay(shop.place(f"customer{number}@example.com"))
        shop.until(lambda: shop.all_sent(20), "the polls have sent the e-mails")
        assert all(shop.log(name).count(POLL) > polls[name] for name in beats)
        shop.kill("beat")
        shop.pay(shop.place())
        shop.until(lambda: shop.all_sent(21), "the other beat's poll has sent the e-mail")
        assert set(shop.accepted().values()) == {1}


def test_a_worker_told_to_stop_finishes_what_is_in_flight_and_gives_back_the_rest(shared_shop):
    shop = shared_shop
    shop.kill("worker")
    shop.sandbox.latency_seconds = 0.3
    for _ in range(40):
        shop.pay(shop.place())
    shop.start("worker", EMAIL_CONCURRENCY="4", **PATIENT)
    shop.until(lambda: ("processing",) in shop.rows(), "the drain runs")
    worker = shop.processes.pop("worker")
    worker.send_signal(signal.SIGTERM)
    worker.wait(PATIENCE)
    assert set(shop.rows("status, next_attempt_at <= now()")) <= {("sent", True), ("pending", True)}
    shop.sandbox.latency_seconds = 0.0
    shop.manage("drain_outbox")
    assert shop.all_sent(40)
    assert set(shop.accepted().values()) == {1}


def test_drain_outbox_needs_neither_broker_nor_worker_nor_beat():
    with Shop() as shop:
        shop.start("web")
        shop.valkey.stop()
        for _ in range(5):
            shop.pay(shop.place())
        shop.manage("drain_outbox")
        assert shop.all_sent(5)


@pytest.mark.drill
def test_wake_ups_that_no_worker_takes_stay_few_and_a_worker_that_comes_back_is_woken_again():
    with Shop(POLL_INTERVAL="6") as shop, redis.Redis.from_url(shop.valkey.url) as broker:
        shop.start("web")
        orders = [shop.place(f"u{n}@example.com") for n in range(40)]

        def waiting() -> int:
            return int(broker.llen("orderpost:tasks"))

        def taken() -> bool:  # and dropped: "unacked" holds those that a worker has fetched and not looked at
            return waiting() + int(broker.hlen("unacked")) == 0

        for order in orders[:-1]:
            shop.pay(order)
            time.sleep(0.11)  # the waker's interval: each payment is a wake-up of its own
        # Each process of the web counts before it adds, so two may add the last one at the same time.
        assert 0 < waiting() < MOST_WAITING + WORKERS
        time.sleep(6.5)  # all of them are older than a poll now, and a worker will drop them
        shop.start("worker")
        shop.until(taken, "the worker has dropped the old wake-ups")
        shop.pay(orders[-1])
        shop.until(lambda: shop.all_sent(40), "one wake-up sends everything")
