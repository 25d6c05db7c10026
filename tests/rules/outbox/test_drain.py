"""The loop: what it sends, settles, gives back and survives. The send is a fake; the database is real."""

from __future__ import annotations

import datetime as dt
import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from django.db import DataError, OperationalError, connection
from django.db.models.functions import Now

from notifications.changes import settle as settle_module
from outbox import claim as claim_module
from outbox.drain import SETTLE_ROWS
from tests.kit.mails import make_mail, make_mails, statuses
from tests.kit.waiting import PATIENCE
from tests.kit.words import (
    LEASE_EXPIRED,
    REGISTRY,
    Capacity,
    Claimed,
    Drain,
    EmailNotification,
    Outcome,
    Status,
    Verdict,
    accept,
    recover,
)
from tests.kit.words import drain as module

pytestmark = pytest.mark.django_db(transaction=True)
ACCEPTED = Outcome(Verdict.ACCEPTED, "test", "m")
HOUR = 3600.0
#: Times of a drain whose clock a test puts forward by hours.
HOURS = {"lease": 30 * HOUR, "send_timeout": 10 * HOUR}


@pytest.fixture
def make(settings, monkeypatch):
    """Make a drain with few threads and long times; keywords override."""
    with ThreadPoolExecutor(8) as pool:

        def call(
            send=lambda row: ACCEPTED,
            *,
            screen=lambda rows: {},
            capacity=None,
            changed=lambda changes: None,
            batch_size=10,
            concurrency=4,
            lease=3 * PATIENCE,
            send_timeout=PATIENCE,
        ):
            settings.EMAIL_CONCURRENCY, settings.LEASE_SECONDS = concurrency, lease
            monkeypatch.setattr(settle_module, "log_changes", changed)
            drain = Drain(send=send, screen=screen, capacity=capacity or (lambda: Capacity(batch_size)))
            drain.pool, drain.send_timeout_seconds = pool, send_timeout
            return drain

        yield call


class Hang:
    """Make senders that wait for `release` with an e-mail, or without one with each, and then accept it."""

    def __init__(self) -> None:
        self.release = threading.Event()

    def __call__(self, slow: EmailNotification | None = None) -> Callable[[Claimed], Outcome]:
        def send(row: Claimed) -> Outcome:
            if slow is None or row.id == slow.id:
                self.release.wait(PATIENCE)
            return ACCEPTED

        return send


@pytest.fixture
def hang(make) -> Iterator[Hang]:
    hang = Hang()
    yield hang
    hang.release.set()


class Clock:
    """The drain's monotonic clock, which a test puts forward."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def put_forward(self, seconds: float) -> None:
        self._ahead += seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def run(make):
    """Make a drain and run it once."""

    def call(send=lambda row: ACCEPTED, *, seconds=PATIENCE, stopping=None, **options):
        drain = make(send, **options)
        drain.stopping = stopping or drain.stopping
        return drain.run(seconds=seconds)

    return call


def claims() -> float:
    """Return how many claims this process has timed."""
    labels = {"table": "email_notifications"}
    return REGISTRY.get_sample_value("orderpost_claim_duration_seconds_count", labels) or 0.0


@pytest.mark.parametrize(
    ("capacity", "statements"),
    [
        (Capacity(10), 1),
        (Capacity(10, is_untried_first=True), 3),  # two for first attempts, then one for any
        (Capacity(10, is_untried_first=True, is_retry_allowed=False), 2),
    ],
)
def test_times_each_statement_that_claims_also_one_without_rows(run, capacity, statements):
    make_mail()
    before = claims()
    run(capacity=lambda: capacity)
    assert claims() - before == statements


def test_settles_what_is_in_flight_before_it_reports_that_a_claim_failed_and_times_that_claim(run):
    make_mails(20)
    statements, before = [], claims()

    def execute(execute, sql, *args):
        if "status = 'processing'" in sql:
            statements.append(sql)
            if len(statements) > 1:
                raise OperationalError("gone")
        return execute(sql, *args)

    with connection.execute_wrapper(execute), pytest.raises(OperationalError):
        run()
    assert statuses() == {"sent": 10, "pending": 10}
    assert claims() - before == 2


def test_warns_of_an_outcome_that_a_lost_claim_drops_but_not_of_an_acceptance_that_a_webhook_told_first(
    run, caplog
):
    def accept_first(rows):
        accept({row.id: ACCEPTED for row in rows})
        return {}

    def lose(rows):
        EmailNotification.objects.filter(id__in=[row.id for row in rows]).update(claim_token=uuid.uuid4())
        return {}

    make_mail()
    run(screen=accept_first)
    assert (statuses(), "outcome dropped" in caplog.text) == ({"sent": 1}, False)
    make_mail()
    run(lambda row: Outcome(Verdict.TRANSIENT, "test"), screen=lose)
    assert (statuses(), "outcome dropped" in caplog.text) == ({"sent": 1, "processing": 1}, True)


def test_sends_every_due_row_once_and_settles_it(run):
    make_mails(57)
    sent = []
    done = run(lambda row: sent.append(row.id) or ACCEPTED)
    assert len(sent) == len(set(sent)) == 57
    assert (done.claimed, done.settled, done.has_more) == (57, 57, False)
    assert statuses() == {"sent": 57}


def test_sends_a_backlog_of_retries_alone_in_one_go(run):
    make_mails(57, status="failed")
    run()
    assert statuses() == {"sent": 57}


def test_holds_no_transaction_while_it_sends(run):
    make_mail()

    def send(row):
        states = EmailNotification.objects.raw(
            "SELECT %s::uuid AS id, count(*) AS open FROM pg_stat_activity"
            " WHERE datname = current_database() AND state LIKE 'idle in transaction%%'",
            [row.id],
        )
        with_open = states[0].open
        connection.close()
        return Outcome(Verdict.ACCEPTED, "test", str(with_open))

    run(send)
    assert EmailNotification.objects.get().provider_message_id == "0"


def test_keeps_no_more_than_the_given_number_in_flight(run):
    make_mails(30)
    flying, most = [], []

    def send(row):
        flying.append(row.id)
        most.append(len(flying))
        time.sleep(0.005)
        flying.remove(row.id)
        return ACCEPTED

    run(send, concurrency=3)
    assert max(most) <= 3


def test_lets_a_hanging_send_hold_back_only_itself(run):
    hanging = make_mail(recipient_email="hang@example.com")
    make_mails(30)
    release = threading.Event()
    others = []

    def send(row):
        if row.id == hanging.id:
            assert release.wait(PATIENCE)
        else:
            others.append(row.id)
            if len(others) == 30:
                release.set()
        return ACCEPTED

    run(send)
    assert statuses() == {"sent": 31}


def test_serves_a_trigger_that_comes_while_a_send_hangs_without_waiting_for_an_outcome(make, monkeypatch):
    monkeypatch.setattr(module, "SETTLE_SECONDS", 60.0)
    first = make_mail()
    release, asked = threading.Event(), threading.Event()

    def send(row):
        if row.id != first.id:
            release.set()
        elif not asked.is_set():
            make_mail()
            asked.set()
            drain.wake()
            assert release.wait(PATIENCE)
            connection.close()
        return ACCEPTED

    drain = make(send)
    drain.run(seconds=PATIENCE)
    assert statuses() == {"sent": 2}


def test_gives_back_what_it_has_not_begun_when_told_to_stop(run):
    make_mails(10)
    stop = threading.Event()

    def send(row):
        stop.set()
        time.sleep(0.02)
        return ACCEPTED

    done = run(send, concurrency=2, stopping=stop)
    counts = statuses()
    assert counts["sent"] <= 4 and counts["sent"] + counts["pending"] == 10
    assert EmailNotification.objects.filter(status=Status.PENDING, retry_count=0).count() == counts["pending"]
    assert done.settled == 10


def test_stops_claiming_when_its_time_is_over_and_says_that_more_is_left(run, clock):
    make_mails(30)
    done = run(lambda row: clock.put_forward(HOUR) or ACCEPTED, seconds=HOUR, **HOURS, batch_size=4)
    assert done.has_more
    assert statuses()["pending"] > 0
    assert set(statuses()) == {"sent", "pending"}


def test_says_that_rows_are_due_which_it_gave_back_after_its_last_claim(run, clock):
    make_mails(6)

    def send(row):
        clock.put_forward(HOUR)
        return ACCEPTED

    done = run(send, concurrency=1, seconds=HOUR, **HOURS, batch_size=20)
    assert statuses()["pending"] > 0
    assert done.next_due_seconds == 0.0


def test_claims_no_more_than_there_is_capacity_for_and_nothing_when_there_is_none(run):
    make_mails(10)
    capacities = iter([Capacity(3), Capacity(2), Capacity(0, 60.0)])
    done = run(lambda row: ACCEPTED, capacity=lambda: next(capacities))
    assert (done.claimed, done.pause_seconds, done.has_more) == (5, 60.0, False)
    assert statuses() == {"sent": 5, "pending": 5}


def test_settles_what_must_not_be_sent_without_sending_it(run):
    make_mails(4)
    sent = []

    def screen(rows):
        return {rows[0].id: Outcome(Verdict.SUPPRESSED, text="bounced"), rows[1].id: Outcome(Verdict.HELD)}

    run(lambda row: sent.append(row.id) or ACCEPTED, screen=screen)
    assert len(sent) == 2
    assert statuses() == {"sent": 2, "suppressed": 1, "failed": 1}


@pytest.mark.parametrize(("batch", "before"), [(8, 2), (1, 5)])
def test_sends_fresh_mails_before_its_backlog_also_at_a_rate_below_four_a_second(
    run, monkeypatch, batch, before
):
    draws = itertools.cycle([0.2, 0.6, 0.4, 0.8])  # a quarter of claims of one row are for first attempts
    monkeypatch.setattr(claim_module, "random", SimpleNamespace(random=lambda: next(draws)))
    make_mails(20, age=600)
    fresh = make_mail()
    order = []
    run(lambda row: order.append(row.id) or ACCEPTED, concurrency=1, batch_size=batch)
    assert order.index(fresh.id) < before


def test_starts_no_send_that_could_outlast_its_lease(run, clock):
    make_mails(3)
    started = []

    def send(row):
        started.append(row.id)
        clock.put_forward(HOUR)
        return ACCEPTED

    capacities = iter([Capacity(3), Capacity(0, 60.0)])
    # The third would begin after two hours, with less than ten of its lease left.
    lease = {"lease": 11.5 * HOUR, "send_timeout": 10 * HOUR, "seconds": 100 * HOUR}
    run(send, concurrency=1, capacity=lambda: next(capacities), **lease)
    assert len(started) == 2
    assert statuses() == {"sent": 2, "pending": 1}


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_takes_a_senders_bug_for_an_ambiguous_end(run, error):
    make_mail()

    def send(row):
        raise error

    run(send, send_timeout=1)
    row = EmailNotification.objects.get()
    assert (row.status, row.errors[0]["code"]) == (Status.FAILED, error.__name__)


def test_tells_of_every_change_of_state(run):
    row = make_mail()
    changes = []
    run(changed=changes.extend)
    assert [(change.id, change.was, change.status) for change in changes] == [(row.id, "processing", "sent")]


def test_settles_again_when_the_database_was_away(run, monkeypatch):
    make_mail()
    real, failures = module.settle, [OperationalError("gone"), OperationalError("gone")]

    def settle(*args):
        if failures:
            raise failures.pop()
        return real(*args)

    monkeypatch.setattr(module, "settle", settle)
    run()
    assert statuses() == {"sent": 1}


@pytest.mark.parametrize("stops", [False, True])
def test_gives_up_settling_when_the_lease_ends_also_at_a_stop(run, monkeypatch, stops):
    make_mails(3)
    stop, tried = threading.Event(), set()

    def send(row):
        if stops:
            stop.set()
        return ACCEPTED

    def settle(ended):
        tried.update(row.id for row, _ in ended)
        raise OperationalError("gone")

    monkeypatch.setattr(module, "settle", settle)
    run(send, stopping=stop, lease=0.3, send_timeout=0.01)
    assert len(tried) == 3
    assert statuses() == {"processing": 3}  # left to recover()


def test_settles_in_small_batches_so_that_a_crash_doubles_few(run):
    make_mails(100)
    sizes = []

    def changed(changes):
        sizes.append(sum(change.status == "sent" for change in changes))

    run(batch_size=100, changed=changed)
    assert max(sizes) <= SETTLE_ROWS and sum(sizes) == 100


@pytest.mark.parametrize("error", [DataError, ZeroDivisionError])
def test_does_not_let_one_row_that_cannot_be_written_take_the_batch_with_it(run, monkeypatch, error):
    bad = make_mail()
    make_mails(5)
    real = module.settle

    def settle(ended):
        if any(row.id == bad.id for row, _ in ended):
            raise error("this one")
        return real(ended)

    monkeypatch.setattr(module, "settle", settle)
    run()
    assert statuses() == {"sent": 5, "processing": 1}


@pytest.mark.parametrize("verdict", [Verdict.TRANSIENT, Verdict.AMBIGUOUS])
def test_sends_and_takes_back_rows_of_which_an_error_has_no_time(run, verdict):
    """Somebody wrote it by hand."""
    errors = [{"provider": "test", "outcome": str(verdict), "counts": True}]
    make_mail(status="failed", errors=errors, resent_at=Now() - dt.timedelta(days=1))
    make_mail(status="failed", errors=errors)
    make_mail(status="processing", errors=errors, claimed_at=Now() - dt.timedelta(minutes=10))
    assert len(recover(lease_seconds=60)) == 1
    refused = Outcome(Verdict.PERMANENT, "test", code="550")
    run(lambda row: refused, screen=None)
    assert statuses() == {"dead_lettered": 2, "failed": 1}


class TestLateAnswers:
    def test_one_that_comes_at_a_stop_is_waited_for_and_settled_although_its_run_is_over(self, make, hang):
        make_mail()
        drain = make(hang(), send_timeout=0.2)
        drain.run(seconds=PATIENCE)  # until the send is late
        assert statuses() == {"processing": 1}
        threading.Timer(0.1, hang.release.set).start()
        drain.stopping.set()
        drain.run(seconds=0)
        assert statuses() == {"sent": 1}

    def test_one_that_comes_after_a_run_is_settled_by_the_next(self, make, hang):
        make_mail()
        drain = make(hang(), send_timeout=0.2)
        done = drain.run(seconds=PATIENCE)
        assert statuses() == {"processing": 1} and done.next_due_seconds is not None
        hang.release.set()
        assert drain.run(seconds=PATIENCE).settled == 1
        assert statuses() == {"sent": 1}

    def test_others_are_sent_while_one_is_late(self, make, hang):
        slow = make_mail()
        drain = make(hang(slow), send_timeout=0.2)
        drain.run(seconds=PATIENCE)
        make_mails(20)
        drain.run(seconds=PATIENCE)
        assert statuses() == {"sent": 20, "processing": 1}

    def test_a_run_ends_when_every_slot_is_taken_by_a_late_send(self, make, hang):
        make_mails(3)
        done = make(hang(), concurrency=2, send_timeout=0.1).run(seconds=PATIENCE)
        assert done.pause_seconds > 0


class TestScreening:
    def test_an_error_in_it_gives_back_what_was_claimed_and_is_raised(self, run):
        make_mails(3)

        def screen(rows):
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            run(screen=screen)
        assert statuses() == {"pending": 3}

    def test_the_retries_that_it_counts_are_written_with_the_outcome(self, run):
        make_mail(status="failed")

        def screen(rows):
            rows[0].retry_count = 1
            return {}

        run(lambda row: Outcome(Verdict.TRANSIENT, "p", code="503"), screen=screen)
        row = EmailNotification.objects.get()
        assert (row.status, row.retry_count, len(row.errors)) == ("failed", 1, 1)


class TestARowThatGoesAlone:
    @pytest.fixture
    def killer(self):
        lost = {"at": "2026-01-01T00:00:00+00:00", "outcome": "ambiguous", "code": LEASE_EXPIRED}
        errors = [lost | {"provider": "", "text": LEASE_EXPIRED}]
        return make_mail(status="failed", retry_count=1, max_retries=1, errors=errors)

    def test_it_is_sent_with_nothing_else_claimed(self, run, killer):
        make_mails(20)
        beside = []

        def send(row):
            if row.id == killer.id:
                beside.extend(EmailNotification.objects.filter(status="processing").exclude(id=row.id))
                connection.close()
            return ACCEPTED

        run(send)
        assert beside == []
        assert statuses() == {"sent": 21}

    def test_the_others_of_its_batch_are_given_back_before_it_begins(self, run, killer):
        for _ in range(3):
            make_mail(status="failed", retry_count=1, max_retries=1, errors=killer.errors)
        claimed_beside = []

        def send(row):
            claimed = EmailNotification.objects.filter(status="processing")
            claimed_beside.append(claimed.exclude(id=row.id).count())
            connection.close()
            return ACCEPTED

        run(send)
        assert claimed_beside == [0, 0, 0, 0]

    def test_it_does_not_wait_for_a_send_that_hangs(self, make, hang, killer):
        """Otherwise it, and all that is claimed after it, would wait until the other's end."""
        drain = make(hang(make_mail()), send_timeout=0.1)
        make_mails(3)
        drain.run(seconds=PATIENCE)
        assert statuses() == {"sent": 4, "processing": 1}

    def test_others_do_not_wait_for_it_once_it_hangs(self, make, hang, killer):
        drain = make(hang(killer), send_timeout=0.1)
        drain.run(seconds=PATIENCE)
        make_mails(3)
        drain.run(seconds=PATIENCE)
        assert statuses() == {"sent": 3, "processing": 1}


class TestWhenEveryProviderIsOpen:
    def test_an_untried_row_goes_before_one_that_waits(self, run):
        make_mails(3, status="failed", age=600)
        fresh = make_mail()
        order = []
        capacities = iter([Capacity(1, is_untried_first=True), Capacity(0, 60.0)])
        run(lambda row: order.append(row.id) or ACCEPTED, capacity=lambda: next(capacities))
        assert order == [fresh.id]

    def test_a_row_that_waits_is_left_alone_until_its_turn(self, run):
        make_mails(3, status="failed")
        done = run(capacity=lambda: Capacity(1, 25.0, is_untried_first=True, is_retry_allowed=False))
        assert (done.claimed, done.pause_seconds) == (0, 25.0)


def test_says_when_the_first_of_its_failures_is_due_again(run):
    make_mails(2)
    waits = iter([50.0, 7.0])
    done = run(lambda row: Outcome(Verdict.TRANSIENT, "p", wait_seconds=next(waits)))
    assert done.next_due_seconds == 7.0


def test_a_claim_of_one_row_that_finds_no_first_attempt_is_followed_by_one_for_retries(make):
    """Every fourth claim of one row is for first attempts alone, if it looks at everything."""
    make_mails(8, status="failed")

    def capacity() -> Capacity:
        drain.lookback.forget()
        return Capacity(1)

    drain = make(lambda row: ACCEPTED, capacity=capacity)
    assert drain.run(seconds=PATIENCE).claimed == 8
