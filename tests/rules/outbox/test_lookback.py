"""Claims while a session holds its snapshot: how many dead entries of the index they step over."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from django.db import connection
from django.db.models.functions import Now

from outbox import claim as module
from outbox.claim import Lookback, claim
from tests.kit.mails import make_mail, make_mails, statuses
from tests.kit.months import dsn
from tests.kit.waiting import PATIENCE
from tests.kit.words import Capacity, Drain, EmailNotification, Outcome, Status, Verdict, settle

ACCEPTED = Outcome(Verdict.ACCEPTED, "test", "m")
RETURNED = Outcome(Verdict.RETURNED)


@pytest.fixture
def outcomes() -> dict[str, Outcome]:
    """Outcomes by recipient. All other e-mails are accepted."""
    return {}


@pytest.fixture
def drain(monkeypatch, settings, outcomes) -> Iterator[Drain]:
    """Make a drain that looks at everything once, and again only when it is told to."""
    monkeypatch.setattr(module, "LONGEST_PAUSE_SECONDS", 1e9)
    monkeypatch.setattr(module, "PAUSE_FACTOR", 1e12)
    with ThreadPoolExecutor(4) as pool:
        settings.EMAIL_CONCURRENCY, settings.LEASE_SECONDS = 4, 60
        drain = Drain(
            send=lambda email: outcomes.get(email.recipient_email, ACCEPTED),
            screen=lambda _: {},
            capacity=lambda: Capacity(100),
        )
        drain.pool, drain.send_timeout_seconds = pool, 5.0
        yield drain


@pytest.fixture
def held_snapshot(transactional_db) -> Iterator[None]:
    with psycopg.connect(dsn()) as holder:
        holder.execute("SET idle_in_transaction_session_timeout = 0")
        holder.commit()
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM email_notifications")
        yield


def due(*, age: float, **fields) -> EmailNotification:
    return make_mail(next_attempt_at=Now() - dt.timedelta(seconds=age), **fields)


def queue(count: int) -> None:
    """Write due e-mails, a hundred every ten seconds, the last ones ten minutes ago."""
    for n in range(count // 100):
        make_mails(100, age=600 + 10 * n)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE email_notifications")


def entries_read() -> int:
    """Return how many entries of the index of due rows were read so far, dead ones included."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes"
            " WHERE relname LIKE 'email_notifications%' AND indexrelname LIKE '%next_attempt_at%'"
        )
        return int(cursor.fetchone()[0] or 0)


def test_looks_back_to_the_last_row_that_was_taken_and_two_seconds_more():
    lookback = Lookback()
    assert lookback.seconds(now=1000.0) is None
    lookback.note_claim(is_whole=True, began_at=1000.0, ended_at=1001.0, age_seconds=300.0)
    assert lookback.seconds(now=1005.0) == pytest.approx(307.0)
    lookback.note_claim(is_whole=False, began_at=1005.0, ended_at=1005.1, age_seconds=0.0)
    assert lookback.seconds(now=1006.0) == pytest.approx(3.0)


def test_looks_at_everything_again_after_a_pause_of_twenty_times_what_that_took():
    lookback = Lookback()
    lookback.note_claim(is_whole=True, began_at=1000.0, ended_at=1000.5, age_seconds=0.0)
    lookback.note_claim(is_whole=False, began_at=1005.0, ended_at=1005.1, age_seconds=0.0)
    assert lookback.seconds(now=1010.4) is not None
    assert lookback.seconds(now=1010.6) is None


def test_waits_for_half_a_minute_at_most_and_not_at_all_when_told():
    lookback = Lookback()
    lookback.note_claim(is_whole=True, began_at=1000.0, ended_at=1100.0, age_seconds=0.0)
    assert lookback.seconds(now=1129.0) is not None
    assert lookback.seconds(now=1131.0) is None
    lookback.note_claim(is_whole=True, began_at=2000.0, ended_at=2001.0, age_seconds=0.0)
    lookback.forget()
    assert lookback.seconds(now=2001.0) is None


def test_steps_over_few_dead_entries_however_many_were_sent_under_a_held_snapshot(held_snapshot, drain):
    queue(3000)
    before = entries_read()
    drain.run(seconds=PATIENCE)
    assert statuses() == {"sent": 3000}
    assert entries_read() - before < 3 * 3000  # of 100 that came at once, a claim may meet some again

    queue(3000)
    drain.lookback.forget()
    drain.run(seconds=PATIENCE)
    before = entries_read()
    make_mail()
    drain.run(seconds=PATIENCE)
    assert statuses() == {"sent": 6001}
    assert entries_read() - before < 100
    drain.lookback.forget()
    make_mail()
    drain.run(seconds=PATIENCE)
    assert entries_read() - before > 6000  # what every claim would read


@pytest.mark.django_db(transaction=True)
def test_finds_a_row_that_was_queued_long_ago_and_committed_late_at_the_next_look_at_everything(drain):
    due(age=600)
    drain.run(seconds=PATIENCE)
    late = due(age=500)
    drain.run(seconds=PATIENCE)
    late.refresh_from_db()
    assert late.status == Status.PENDING
    drain.lookback.forget()  # as each poll does
    drain.run(seconds=PATIENCE)
    late.refresh_from_db()
    assert late.status == Status.SENT


@pytest.mark.django_db(transaction=True)
def test_takes_a_row_that_committed_a_second_late_at_once(drain):
    due(age=0.5)
    drain.run(seconds=PATIENCE)
    due(age=1.5)
    drain.run(seconds=PATIENCE)
    assert statuses() == {"sent": 2}


@pytest.mark.django_db(transaction=True)
def test_takes_what_it_gave_back_itself_at_once(drain, outcomes):
    kept = due(age=600, recipient_email="back@example.com")
    due(age=300)
    outcomes["back@example.com"] = RETURNED
    drain.run(seconds=PATIENCE)
    assert statuses() == {"pending": 1, "sent": 1}
    outcomes.clear()
    drain.run(seconds=PATIENCE)
    kept.refresh_from_db()
    assert kept.status == Status.SENT


@pytest.mark.django_db(transaction=True)
def test_takes_a_retry_when_it_is_due_whatever_was_taken_meanwhile(drain):
    retry = due(age=-0.3, status=Status.FAILED)
    for _ in range(3):
        due(age=1)
        drain.run(seconds=PATIENCE)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(0.4)")
    drain.run(seconds=PATIENCE)
    retry.refresh_from_db()
    assert retry.status == Status.SENT


@pytest.mark.django_db
def test_a_claim_that_looks_back_takes_the_longest_due_and_the_newest_of_the_last_seconds():
    old = [due(age=100 - n) for n in range(8)]
    due(age=1000)
    new = [due(age=2 - n) for n in range(2)]
    claimed = claim(limit=8, fresh=2, lookback_seconds=110)
    assert [row.id for row in claimed] == [row.id for row in (*reversed(new), *old[:6])]
    assert claimed[-1].age_seconds == pytest.approx(95, abs=1)
    settle((row, ACCEPTED) for row in claimed)
    assert len(claim(limit=8, fresh=2, lookback_seconds=110)) == 2
    assert len(claim(limit=8)) == 1


@pytest.mark.django_db
def test_a_claim_that_looks_back_is_filled_up_where_nothing_is_new():
    old = [due(age=100 - n) for n in range(10)]
    assert [row.id for row in claim(limit=8, fresh=2, lookback_seconds=110)] == [row.id for row in old[:8]]
    assert len(claim(limit=1, fresh=1, lookback_seconds=110)) == 1


@pytest.mark.django_db(transaction=True)
def test_goes_on_until_nothing_is_due_when_one_row_may_go_at_a_time(drain, monkeypatch):
    for n in range(12):
        due(age=100 + n)
    monkeypatch.setattr(drain, "capacity", lambda: Capacity(1))
    assert drain.run(seconds=PATIENCE).settled == 12
