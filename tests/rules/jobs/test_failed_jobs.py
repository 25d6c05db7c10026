"""A bulk job that cannot run is tried again with growing waits, fails with its reason, and is restarted."""

from __future__ import annotations

import dataclasses
import datetime as dt
import threading
from collections import Counter

import psycopg
import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import DataError, OperationalError, connection, connections
from django.db.models.functions import Now

from outbox.models.jobs import MAX_TRIES
from tests.kit.jobs import run_jobs
from tests.kit.mails import make_mail, make_mails, statuses
from tests.kit.months import dsn
from tests.kit.words import RESEND, BulkJob, EmailNotification, bulk

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(bulk, "CHUNK", 20)
    monkeypatch.setattr(bulk.waker, "wake", lambda: None)


@pytest.fixture
def tries(monkeypatch) -> list[int]:
    """Let each batch after the first fail. Return the sizes of the batches that failed."""
    found: list[int] = []

    def change(ids):
        if EmailNotification.objects.filter(status="pending").exists():
            found.append(len(ids))
            raise ValueError("a defect")
        return RESEND.change(ids)

    monkeypatch.setitem(bulk.ACTIONS, RESEND.name, dataclasses.replace(RESEND, change=change))
    return found


def start(action: str = RESEND.name) -> BulkJob:
    user, _ = User.objects.get_or_create(username="ann", is_superuser=True)
    return bulk.start_job(action=action, filter={"status": "dead_lettered"}, user=user)


def let_pass(job: BulkJob, *, seconds: float) -> None:
    BulkJob.objects.filter(id=job.id).update(updated_at=Now() - dt.timedelta(seconds=seconds))


def fail(job: BulkJob) -> None:
    """Try until it fails."""
    while BulkJob.objects.running().exists():
        let_pass(job, seconds=3000)
        run_jobs()
    job.refresh_from_db()


def test_it_is_tried_eight_times_with_growing_waits_and_fails_with_its_reason(tries):
    make_mails(50, status="dead_lettered")
    job = start()
    run_jobs()
    job.refresh_from_db()
    assert (job.state, job.error, job.tries, job.done_count) == ("running", "ValueError: a defect", 1, 20)
    for number, wait in enumerate((10, 20, 40, 80, 160, 320, 640), start=1):
        assert len(tries) == number
        let_pass(job, seconds=wait - 2)
        run_jobs()
        assert len(tries) == number, f"it waits {wait} s"
        let_pass(job, seconds=wait)
        run_jobs()
    job.refresh_from_db()
    assert (job.state, job.error, job.done_count) == ("failed", "ValueError: a defect", 20)
    assert job.finished_at is not None
    let_pass(job, seconds=3000)
    run_jobs()
    assert len(tries) == MAX_TRIES


def test_a_batch_that_succeeds_gives_all_tries_back(tries, monkeypatch):
    make_mails(50, status="dead_lettered")
    job = start()
    for _ in range(5):
        run_jobs()
        let_pass(job, seconds=3000)
    monkeypatch.setitem(bulk.ACTIONS, RESEND.name, RESEND)
    bulk.run_batch()
    job.refresh_from_db()
    assert (job.state, job.tries, job.error, job.done_count) == ("running", 0, "", 40)


def test_a_failing_job_does_not_delay_another_one(tries):
    make_mails(21, status="dead_lettered")
    start()
    run_jobs()
    other = start("notifications.give_up")
    run_jobs()
    other.refresh_from_db()
    assert (other.state, other.done_count) == ("done", 1)


class Killed(BaseException):
    """The end of the process."""


def test_processes_that_are_killed_in_a_batch_do_not_try_it_more_often(monkeypatch):
    make_mail(status="dead_lettered")
    job = start()
    kills = []

    def change(ids):
        kills.append(ids)
        raise Killed

    monkeypatch.setitem(bulk.ACTIONS, RESEND.name, dataclasses.replace(RESEND, change=change))
    for _ in range(MAX_TRIES):
        with pytest.raises(Killed):
            run_jobs()
        run_jobs()  # the next process, at once
        let_pass(job, seconds=3000)
    run_jobs()
    job.refresh_from_db()
    assert (job.state, len(kills)) == ("failed", MAX_TRIES)
    assert job.error == "The process was killed in the last of 8 tries."


@pytest.mark.django_db(transaction=True)
def test_processes_at_once_do_not_try_it_more_often(tries):
    make_mails(50, status="dead_lettered")
    job = start()
    bulk.run_batch()
    for number in range(1, MAX_TRIES + 1):
        together(run_jobs)
        assert len(tries) == number
        let_pass(job, seconds=3000)
    job.refresh_from_db()
    assert job.state == "failed"


def together(run) -> list[object]:
    """Run in four threads that start at once."""
    barrier, found = threading.Barrier(4), []

    def work():
        try:
            barrier.wait(20)
            found.append(run())
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


@pytest.mark.django_db(transaction=True)
def test_a_failed_job_is_restarted_once_and_does_each_row_once(tries, monkeypatch):
    make_mails(50, status="dead_lettered")
    job = start()
    fail(job)
    assert (job.state, job.done_count) == ("failed", 20)
    monkeypatch.setitem(bulk.ACTIONS, RESEND.name, RESEND)
    assert sorted(together(lambda: bulk.restart_job(id=job.id))) == [False, False, False, True]
    together(run_jobs)
    job.refresh_from_db()
    assert (job.state, job.error, job.tries, job.done_count) == ("done", "", 0, 50)
    lines = Counter(LogEntry.objects.values_list("object_id", flat=True))
    assert set(lines.values()) == {1} and len(lines) == 50
    assert statuses() == {"pending": 50}


def test_only_a_failed_job_is_restarted_and_a_failed_one_can_be_stopped(tries):
    make_mails(50, status="dead_lettered")
    job = start()
    assert bulk.restart_job(id=job.id) is False
    fail(job)
    assert BulkJob.objects.stop(id=job.id) is True
    job.refresh_from_db()
    assert (job.state, job.error) == ("stopped", "ValueError: a defect")
    assert bulk.restart_job(id=job.id) is False


class TestUnknownAction:
    """It may belong to a newer release, whose processes work at it."""

    def test_it_is_left_alone_for_an_hour_and_then_fails(self, monkeypatch):
        job = start()
        monkeypatch.delitem(bulk.ACTIONS, RESEND.name)
        let_pass(job, seconds=3590)
        before = BulkJob.objects.values().get()
        run_jobs()
        assert BulkJob.objects.values().get() == before
        let_pass(job, seconds=3600)
        run_jobs()
        job.refresh_from_db()
        assert (job.state, job.error) == (
            "failed",
            "No process knew the action notifications.resend for an hour.",
        )

    def test_it_runs_where_it_is_known_and_again_after_a_restart(self, monkeypatch):
        make_mail(status="dead_lettered")
        job = start()
        monkeypatch.delitem(bulk.ACTIONS, RESEND.name)
        let_pass(job, seconds=3600)
        run_jobs()
        monkeypatch.setitem(bulk.ACTIONS, RESEND.name, RESEND)
        assert bulk.restart_job(id=job.id) is True
        run_jobs()
        job.refresh_from_db()
        assert (job.state, job.error, job.done_count) == ("done", "", 1)

    def test_the_poll_wakes_a_worker_to_fail_it(self, monkeypatch):
        woken = []
        job = start()
        monkeypatch.setattr(bulk.waker, "wake", lambda: woken.append(1))
        monkeypatch.delitem(bulk.ACTIONS, RESEND.name)
        let_pass(job, seconds=3590)
        bulk.wake_for_unfinished()
        assert woken == []
        let_pass(job, seconds=3600)
        bulk.wake_for_unfinished()
        assert woken == [1]


class TestDatabaseErrors:
    @pytest.mark.django_db(transaction=True)
    def test_a_lost_connection_is_not_the_jobs_error(self, monkeypatch):
        make_mail(status="dead_lettered")
        job = start()

        def change(ids):
            with psycopg.connect(dsn(), autocommit=True) as killer:
                pid = connection.connection.info.backend_pid
                killer.execute("SELECT pg_terminate_backend(%s)", [pid])
            return RESEND.change(ids)

        monkeypatch.setitem(bulk.ACTIONS, RESEND.name, dataclasses.replace(RESEND, change=change))
        with pytest.raises(OperationalError):
            run_jobs()
        connection.close()
        monkeypatch.setitem(bulk.ACTIONS, RESEND.name, RESEND)
        job.refresh_from_db()
        assert (job.state, job.error) == ("running", "")
        let_pass(job, seconds=10)
        run_jobs()
        job.refresh_from_db()
        assert (job.state, job.done_count) == ("done", 1)

    @pytest.mark.parametrize("statement", ["SELECT 1/0", "SET LOCAL statement_timeout=1; SELECT pg_sleep(9)"])
    def test_what_the_database_refuses_is_the_jobs_error(self, monkeypatch, statement):
        make_mail(status="dead_lettered")
        job = start()

        def change(ids):
            with connection.cursor() as cursor:
                cursor.execute(statement)

        monkeypatch.setitem(bulk.ACTIONS, RESEND.name, dataclasses.replace(RESEND, change=change))
        run_jobs()
        job.refresh_from_db()
        error = DataError if "1/0" in statement else OperationalError
        assert (job.state, job.tries) == ("running", 1) and job.error.startswith(error.__name__)
