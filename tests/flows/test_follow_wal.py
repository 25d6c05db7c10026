"""`manage.py follow_wal` as processes: it alone sends every mail, whoever wrote it and whatever dies."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.flows.shop import Shop
from tests.flows.test_outages import BACKLOG, insert_mails

pytestmark = pytest.mark.flow
#: No fast path, and no poll within a test but the full look after each beginning.
ALONE = {"FAST_PATH": "off", "POLL_INTERVAL": "3600"}
FOLLOWERS = ("follower", "follower:2")
RESEND = """
    UPDATE email_notifications SET status = 'pending', next_attempt_at = now() WHERE status = 'dead_lettered'
"""


def leader(shop: Shop) -> str:
    """Return the name of the follower that receives, and wait for it."""
    pids = "SELECT client_port FROM pg_stat_replication WHERE state = 'streaming'"
    shop.until(lambda: shop.query(pids), "one follows")
    running = [name for name in FOLLOWERS if name in shop.processes]
    counts = {name: shop.log(name).count('"wal is followed"') for name in running}
    return max(counts, key=lambda name: counts[name])


def start_followers(shop: Shop, *names: str) -> None:
    shop.manage("follow_wal", "--make-publications")
    shop.start(*names)
    leader(shop)


def test_it_alone_sends_every_mail_with_poll_fast_path_and_redis_off():
    with Shop(**ALONE) as shop:
        start_followers(shop, *FOLLOWERS)
        shop.start("web")
        shop.valkey.stop()
        shop.pay(shop.place())
        shop.until(lambda: shop.all_sent(1), "a mail of the API is sent")
        insert_mails(shop, 20)
        shop.until(lambda: shop.all_sent(21), "mails written by SQL are sent")
        shop.sandbox.fail(kind="status", status=500, times=1)
        insert_mails(shop, 1)
        shop.until(lambda: shop.all_sent(22), "a retry is sent when it is due")
        shop.sandbox.fail(kind="status", status=400, times=1)
        insert_mails(shop, 1)
        shop.until(lambda: ("dead_lettered",) in shop.rows(), "one is dead")
        shop.query(RESEND)
        shop.until(lambda: shop.all_sent(23), "what SQL made due again is sent")
        first = leader(shop)
        shop.kill(first)
        insert_mails(shop, 5)
        shop.until(lambda: shop.all_sent(28), "the other one takes over")
        assert set(shop.accepted().values()) == {1}
        (second,) = {*FOLLOWERS} - {first}
        assert shop.terminate(second, seconds=15)


#: The follower has reported the log's end, and has asked the database something since a statement waits.
HEARD_OF = """
    SELECT flush_lsn >= pg_current_wal_flush_lsn() AND (
        SELECT max(asking.state_change) > min(waiting.query_start)
        FROM pg_stat_activity AS asking, pg_stat_activity AS waiting
        WHERE asking.query LIKE '%next_attempt_at%' AND asking.pid <> pg_backend_pid()
            AND waiting.wait_event = 'SyncRep' AND asking.pid <> waiting.pid)
    FROM pg_stat_replication
"""


def test_a_mail_whose_commit_is_in_the_log_before_anybody_sees_it_is_sent_once_it_is_seen():
    """So it is for the moment between the two, and here as long as a synchronous standby is away."""
    with Shop(**ALONE) as shop:
        shop.query("ALTER ROLE CURRENT_USER SET synchronous_commit = local")
        start_followers(shop, "follower")
        shop.query("ALTER SYSTEM SET synchronous_standby_names = 'away'")
        shop.query("SELECT pg_reload_conf()")

        def insert() -> None:
            with psycopg.connect(shop.postgres.url, autocommit=True) as connection:
                connection.execute("SET synchronous_commit = on")
                connection.execute(BACKLOG, [1])

        with ThreadPoolExecutor(1) as pool:
            committing = pool.submit(insert)
            shop.until(lambda: shop.query(HEARD_OF) == [(True,)], "the follower has heard of it and looked")
            assert shop.rows() == [] and not committing.done()
            shop.query("ALTER SYSTEM RESET synchronous_standby_names")
            shop.query("SELECT pg_reload_conf()")
            shop.until(lambda: shop.all_sent(1), "it is sent")


@pytest.mark.drill
def test_three_triggers_at_once_send_each_mail_once():
    with Shop() as shop:
        start_followers(shop, *FOLLOWERS)
        shop.start("web", "worker", "beat", "standby")
        for number in range(60):
            shop.pay(shop.place(f"c{number}@example.com"))
            if number % 10 == 0:
                insert_mails(shop, 10)
        shop.until(lambda: shop.all_sent(120), "all are sent")
        assert set(shop.accepted().values()) == {1}


@pytest.mark.drill
@pytest.mark.parametrize(
    ("fault", "accepted"), [("hang", 1), ("accept_then_hang", 2)], ids=["before-the-send", "after-the-send"]
)
def test_killed_in_the_middle_it_loses_nothing_and_doubles_only_what_was_in_flight(fault, accepted):
    with Shop(FAST_PATH="off") as shop:
        shop.sandbox.fail(kind=fault, seconds=30, times=1)
        start_followers(shop, "follower")
        insert_mails(shop, 1)
        shop.until(lambda: shop.sandbox.stats()["requests"] > 0, "the provider is asked")
        shop.kill("follower")
        assert shop.rows() == [("processing",)]
        shop.start("follower")
        shop.until(lambda: shop.all_sent(1), "its own poll takes the claim back")
        assert list(shop.accepted().values()) == [accepted]


@pytest.mark.drill
def test_killed_again_and_again_while_mails_come_it_loses_none():
    with Shop(FAST_PATH="off") as shop:
        start_followers(shop, *FOLLOWERS)
        for round in range(6):
            insert_mails(shop, 30)
            name = FOLLOWERS[round % 2]
            shop.kill(name)
            insert_mails(shop, 10)
            shop.start(name)
        shop.until(lambda: shop.all_sent(240), "all are sent")


@pytest.mark.drill
def test_it_goes_on_after_a_killed_session_and_a_killed_postgresql():
    with Shop(**ALONE) as shop:
        start_followers(shop, "follower")
        shop.query("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
        insert_mails(shop, 5)
        shop.until(lambda: shop.all_sent(5), "the session was killed")
        shop.restart_postgres_hard()
        insert_mails(shop, 5)
        shop.until(lambda: shop.all_sent(10), "PostgreSQL was killed")
