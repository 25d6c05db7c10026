"""SIGTERM in the middle of a drain: when the process has exited, none of its e-mails is in `processing`."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from config.celery import app
from local.machine import HOST
from tests.kit.servers import frozen
from tests.kit.shop import Shop
from tests.kit.smtp import SmtpServer

pytestmark = pytest.mark.flow

#: More than are sent at a time, so that some are claimed and not started.
COUNT = 12
SETTINGS = {
    "EMAIL_PROVIDERS": "smtp",
    "EMAIL_CONCURRENCY": "4",
    "EMAIL_RATE_LIMIT": "0",
    "EMAIL_READ_TIMEOUT": "5",
    "LEASE_SECONDS": "60",
}
POLLED = "SELECT extract(epoch FROM beat_at) FROM heartbeats WHERE name = 'poll'"


@contextmanager
def slow_shop(*, taking: float, **settings: str) -> Iterator[tuple[Shop, SmtpServer]]:
    """Run a shop whose SMTP server has a message `taking` seconds before it says so."""
    with (
        Shop() as shop,
        SmtpServer(sandbox=shop.sandbox, taking=taking) as server,
    ):
        shop.settings |= SETTINGS | settings | {"EMAIL_URL": f"smtp://{HOST}:{server.port}"}
        yield shop, server


def enqueue(shop: Shop, task: str) -> None:
    with app.connection_for_write(shop.valkey.url) as connection:
        app.send_task(task, connection=connection)


def poll(shop: Shop) -> None:
    """Have the worker poll, and wait until it did."""
    before = shop.query(POLLED)
    enqueue(shop, "poll_outbox")
    shop.until(lambda: shop.query(POLLED) != before, "the worker polled")


def drain_in_celery(shop: Shop) -> str:
    shop.start("worker", POLL_INTERVAL="600")
    poll(shop)
    shop.insert_mails(COUNT)
    enqueue(shop, "drain_emails")
    return "worker"


def drain_by_alarm(shop: Shop) -> str:
    shop.start("worker", POLL_INTERVAL="600")
    poll(shop)
    shop.insert_mails(COUNT)
    shop.query(
        "UPDATE email_notifications SET next_attempt_at = now() + interval '3 s' WHERE status <> 'sent'"
    )
    poll(shop)
    assert shop.statuses()["pending"] == COUNT  # so it is the timer that will send them
    return "worker"


def drain_in_standby(shop: Shop) -> str:
    shop.insert_mails(COUNT)
    shop.start("standby")
    return "standby"


def drain_in_background(shop: Shop) -> str:
    shop.insert_mails(COUNT)
    shop.start("background")
    return "background"


DRAINS = [drain_in_celery, drain_by_alarm, drain_in_standby, drain_in_background]


@pytest.fixture(scope="module")
def slow() -> Iterator[tuple[Shop, SmtpServer]]:
    with slow_shop(taking=1.0) as (shop, server):
        yield shop, server


def check_stop(shop: Shop, server: SmtpServer, drain: Callable[[Shop], str], *, signals: int = 1) -> None:
    """Stop the process that drains while the server has a message; then have another one send the rest."""
    shop.query("DELETE FROM email_notifications")
    shop.query("DELETE FROM heartbeats")
    before = server.accepted
    name = drain(shop)
    shop.until(lambda: server.accepted > before, "the server has a message, and has not said so yet")
    for _ in range(signals - 1):
        shop.processes[name].terminate()
        shop.until(lambda: "Warm shutdown" in shop.log(name), "the worker heard the first SIGTERM")
    assert shop.terminate(name, seconds=20), shop.log(name)
    states = shop.statuses()
    assert set(states) == {"sent", "pending"}, (states, shop.log(name)[-3000:])
    assert states["sent"] == server.accepted - before
    shop.manage("drain_outbox")
    assert shop.all_sent(COUNT)
    assert shop.doubled() == []


@pytest.mark.parametrize("drain", DRAINS)
def test_a_process_told_to_stop_settles_what_the_server_took_and_gives_back_the_rest(slow, drain):
    check_stop(*slow, drain)


def test_a_second_sigterm_does_not_hasten_the_stop(slow):
    shop, _ = slow
    (shop.folder / "worker.log").unlink(missing_ok=True)
    check_stop(*slow, drain_by_alarm, signals=2)


@pytest.mark.drill
@pytest.mark.parametrize("drain", [drain_in_celery, drain_by_alarm, drain_in_standby])
def test_none_of_thirty_stops_at_any_moment_leaves_an_e_mail_in_processing(drain):
    chance = random.Random(29)
    with slow_shop(taking=2.0) as (shop, server):
        for _ in range(30):
            stop_at_random(shop, server, drain, chance)
        assert shop.doubled() == []


def stop_at_random(
    shop: Shop, server: SmtpServer, drain: Callable[[Shop], str], chance: random.Random
) -> None:
    shop.query("DELETE FROM email_notifications")
    shop.query("DELETE FROM heartbeats")
    before, wanted = server.accepted, chance.randrange(COUNT)
    name = drain(shop)
    shop.until(lambda: server.accepted - before >= wanted, f"the server has {wanted} messages")
    time.sleep(chance.random() * server.taking)
    assert shop.terminate(name, seconds=20), shop.log(name)[-3000:]
    states = shop.statuses()
    assert set(states) <= {"sent", "pending"}, (states, shop.log(name)[-3000:])
    assert states["sent"] == server.accepted - before


@pytest.mark.drill
def test_outcomes_that_a_frozen_database_does_not_take_at_a_stop_are_written_when_it_answers_again():
    with slow_shop(taking=1.0, DATABASE_TIMEOUT="1") as (shop, server):
        name = drain_by_alarm(shop)
        shop.until(lambda: server.accepted, "the server has a message, and has not said so yet")
        with frozen(shop.postgres):
            shop.processes[name].terminate()
            shop.until(lambda: "settling failed, trying again" in shop.log(name), "settling is tried again")
        assert shop.terminate(name, seconds=30), shop.log(name)[-3000:]
        states = shop.statuses()
        assert set(states) == {"sent", "pending"}, (states, shop.log(name)[-3000:])
        assert states["sent"] == server.accepted
