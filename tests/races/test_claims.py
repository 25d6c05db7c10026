"""Claims and settlements of several workers at once, on real locks."""

from __future__ import annotations

import datetime as dt
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
from django.db import connection, connections, transaction
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from tests.kit.mails import make_mail, make_mails, statuses
from tests.kit.plans import plan_of
from tests.kit.races import together, wait_until_somebody_waits
from tests.kit.waiting import PATIENCE
from tests.kit.words import (
    EmailNotification,
    Outcome,
    Status,
    Verdict,
    claim,
    manual_actions,
    recover,
    settle,
    transitions,
)

pytestmark = pytest.mark.django_db(transaction=True)
rows = EmailNotification.objects
ACCEPTED = Outcome(Verdict.ACCEPTED, "test", "m")
BEING_SENT = "it is processing, not dead_lettered, failed or pending"


def test_eight_threads_claim_two_thousand_rows_each_once():
    make_mails(2000)

    def claim_all(_):
        mine = []
        misses = 0
        while misses < 3:
            batch = claim(limit=50)
            mine += [row.id for row in batch]
            misses = 0 if batch else misses + 1
        return mine

    claimed = Counter(id_ for mine in together(8, claim_all) for id_ in mine)
    assert len(claimed) == 2000
    assert set(claimed.values()) == {1}
    assert statuses() == {"processing": 2000}


def test_a_claim_passes_by_rows_that_another_has_locked():
    make_mails(10)
    with transaction.atomic():
        locked = {row.id for row in rows.due().select_for_update()[:5]}
        (others,) = together(1, lambda _: {row.id for row in claim(limit=10)})
    assert len(others) == 5
    assert not others & locked


def test_settling_overlapping_sets_in_different_orders_never_deadlocks():
    make_mails(60)
    claimed = claim(limit=60)
    before = deadlocks()

    def work(number):
        chance = random.Random(number)
        for _ in range(40):
            some = chance.sample(claimed, 20)
            outcome = Outcome(Verdict.RETURNED) if number % 2 else Outcome(Verdict.TRANSIENT, code="503")
            settle([(row, outcome) for row in some])
            recover(lease_seconds=0)
            manual_actions.change(ids=[row.id for row in chance.sample(claimed, 5)], act=transitions.RESEND)
            claim(limit=20)

    together(6, work)  # a deadlock would raise OperationalError in one of them
    assert deadlocks() == before


def deadlocks() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


def test_two_recoveries_at_once_take_each_row_once():
    make_mails(300)
    claim(limit=300)
    rows.update(claimed_at=Now() - dt.timedelta(seconds=400))
    taken = Counter(
        change.id for some in together(4, lambda _: recover(lease_seconds=300)) for change in some
    )
    assert set(taken.values()) == {1}
    assert set(rows.values_list("retry_count", flat=True)) <= {0, 1}
    recover(lease_seconds=300)
    assert set(rows.values_list("retry_count", flat=True)) == {1}


def test_a_worker_whose_clock_is_five_minutes_ahead_takes_no_live_claim(monkeypatch):
    make_mail(next_attempt_at=Now() + dt.timedelta(seconds=120))
    make_mail(status=Status.PROCESSING, claimed_at=Now() - dt.timedelta(seconds=100))
    before = list(rows.order_by("id").values())
    real_time, real_ns = time.time, time.time_ns
    monkeypatch.setattr("time.time", lambda: real_time() + 300)
    monkeypatch.setattr("time.time_ns", lambda: real_ns() + 300 * 10**9)
    monkeypatch.setattr(
        "django.utils.timezone.now", lambda: dt.datetime.fromtimestamp(real_time() + 300, dt.UTC)
    )
    assert recover(lease_seconds=300) == []
    assert claim(limit=10) == []
    assert list(rows.order_by("id").values()) == before


def test_a_resend_and_a_claim_at_once_send_the_row_once():
    dead = [make_mail(status=Status.DEAD_LETTERED) for _ in range(20)]
    ids = [row.id for row in dead]

    def work(number):
        if number < 3:
            return [change.id for change in manual_actions.change(ids=ids, act=transitions.RESEND)[0]]
        mine = []
        for _ in range(20):
            mine += [row.id for row in claim(limit=5)]
        return mine

    results = together(6, work)
    requeued = Counter(id_ for result in results[:3] for id_ in result)
    claimed = Counter(id_ for result in results[3:] for id_ in result)
    assert set(requeued.values()) == {1} and len(requeued) == 20
    assert set(claimed.values()) <= {1}


def test_a_reader_never_waits_for_a_claim_and_a_claim_never_for_a_reader():
    make_mails(5)
    ready, done = threading.Event(), threading.Event()

    def reader():
        with transaction.atomic():
            list(rows.all())
            ready.set()
            done.wait(PATIENCE)
        connections.close_all()

    thread = threading.Thread(target=reader)
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        assert len(claim(limit=5)) == 5
    finally:
        done.set()
        thread.join()


def test_a_resend_and_giving_up_at_once_leave_each_row_in_one_state_and_say_so():
    ids = [make_mail(status=Status.DEAD_LETTERED).id for _ in range(30)]
    acts = (transitions.RESEND, transitions.DISCARD)
    results = together(2, lambda number: manual_actions.change(ids=ids, act=acts[number]))
    resent, given_up = ({change.id for change in changes} for changes, _ in results)
    now = dict(rows.values_list("id", "status"))
    # Each may follow the other.
    assert resent - given_up <= {id for id, status in now.items() if status == "pending"} <= resent
    assert given_up - resent <= {id for id, status in now.items() if status == "discarded"} <= given_up
    assert resent | given_up == set(ids) == set(now)


def test_giving_up_and_a_claim_at_once_leave_each_row_to_one_of_them_and_say_so():
    ids = {make_mail().id for _ in range(30)}
    changed, claimed = together(
        2,
        lambda number: (
            {email.id for email in claim(limit=30)}
            if number
            else manual_actions.change(ids=ids, act=transitions.DISCARD)
        ),
    )
    given_up, refusals = {change.id for change in changed[0]}, changed[1]
    assert given_up | claimed == ids and not given_up & claimed
    assert {refusal.id for refusal in refusals} == claimed
    assert {refusal.text for refusal in refusals} <= {BEING_SENT}
    now = dict(rows.values_list("id", "status"))
    assert {id for id, status in now.items() if status == "discarded"} == given_up
    assert {id for id, status in now.items() if status == "processing"} == claimed


def test_giving_up_waits_for_a_claim_that_has_the_rows_lock_and_is_refused():
    mail, claimed = make_mail(), threading.Event()

    def claiming():
        with transaction.atomic():
            assert claim(limit=1)
            claimed.set()
            wait_until_somebody_waits()
        connections.close_all()

    thread = threading.Thread(target=claiming)
    thread.start()
    assert claimed.wait(PATIENCE)
    changes, (refusal,) = manual_actions.change(ids=[mail.id], act=transitions.DISCARD)
    thread.join()
    assert changes == [] and refusal.text == BEING_SENT
    assert rows.get().status == "processing"


def rows_read(work: Callable[[], object], mark: str) -> int:
    """Do some work, run its statement with `mark` again, and return how many rows the statement read."""
    with CaptureQueriesContext(connection) as captured:
        work()
    (statement,) = (query["sql"] for query in captured if mark in query["sql"])
    with transaction.atomic():
        plan = plan_of(statement)
        transaction.set_rollback(True)
    return plan.visited


def test_recovering_settling_and_claiming_read_about_as_many_rows_as_they_change(filled):
    claimed = claim(limit=20)  # before the recovery, which finds only these
    assert rows_read(lambda: recover(lease_seconds=300), "SELECT") <= 40
    settle_all = partial(settle, [(row, ACCEPTED) for row in claimed])
    assert rows_read(settle_all, "jsonb_to_recordset") <= 100
    # The fresh quarter steps over the due rows of the first part, and each row is read again by its id.
    assert 200 <= rows_read(lambda: claim(limit=100), "UPDATE") <= 400
