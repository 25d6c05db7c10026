"""A bulk job that cannot run is tried again with growing waits, fails with its reason, and is restarted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import DataError, OperationalError, connection

from runtime.models.jobs import MAX_TRIES
from tests.kit.jobs import Killed, job_after, let_pass, logged, resending, run_jobs, started
from tests.kit.mails import make_mail, make_mails, statuses
from tests.kit.months import dsn
from tests.kit.races import together
from tests.kit.words import (
    ACTIONS,
    RESEND,
    BulkJob,
    EmailNotification,
    restart_job,
    run_batch,
    wake_for_unfinished,
)

pytestmark = pytest.mark.django_db
#: Longer than the longest wait between two tries.
LONG = 3000


class Defect:
    """Let each batch fail while some e-mail is pending, until it is `fixed`. Count the tries."""

    tries = 0
    fixed = False

    def __call__(self, ids: Any) -> Any:
        if not self.fixed and EmailNotification.objects.filter(status="pending").exists():
            self.tries += 1
            raise ValueError("a defect")
        return RESEND.change(ids)


@pytest.fixture
def defect() -> Iterator[Defect]:
    with resending(Defect()) as defect:
        yield defect


def failed(job: BulkJob) -> BulkJob:
    """Try it until it has failed."""
    while (job := job_after(job, seconds=LONG)).state == "running":
        pass
    assert job.state == "failed"
    return job


def test_it_is_tried_eight_times_with_growing_waits_and_fails_with_its_reason(defect):
    make_mails(50, status="dead_lettered")
    job = job_after(started())
    assert (job.state, job.error, job.tries, job.done_count) == ("running", "ValueError: a defect", 1, 20)
    for number, wait in enumerate((10, 20, 40, 80, 160, 320, 640), start=1):
        job_after(job, seconds=wait - 2)
        assert defect.tries == number, f"it waits {wait} s"
        job = job_after(job, seconds=wait)
        assert defect.tries == number + 1
    assert (job.state, job.error, job.done_count) == ("failed", "ValueError: a defect", 20)
    assert job.finished_at is not None
    job_after(job, seconds=LONG)
    assert defect.tries == MAX_TRIES


def test_a_batch_that_succeeds_gives_all_tries_back(defect):
    make_mails(50, status="dead_lettered")
    job = started()
    for _ in range(5):
        job = job_after(job, seconds=LONG)
    let_pass(job, seconds=LONG)
    defect.fixed = True
    run_batch()
    job.refresh_from_db()
    assert (job.state, job.tries, job.error, job.done_count) == ("running", 0, "", 40)


def test_a_failing_job_does_not_delay_another_one(defect):
    make_mails(21, status="dead_lettered")
    job_after(started())
    other = job_after(started("notifications.give_up"))
    assert (other.state, other.done_count) == ("done", 1)


def test_processes_that_are_killed_in_a_batch_do_not_try_it_more_often():
    make_mail(status="dead_lettered")
    job = started()
    kills = 0

    def change(ids):
        nonlocal kills
        kills += 1
        raise Killed

    with resending(change):
        for _ in range(MAX_TRIES):
            with pytest.raises(Killed):
                run_jobs()
            job_after(job)  # the next process, at once
            let_pass(job, seconds=LONG)
        job = job_after(job)
    assert (job.state, kills) == ("failed", MAX_TRIES)
    assert job.error == "The process was killed in the last of 8 tries."


@pytest.mark.django_db(transaction=True)
def test_processes_at_once_do_not_try_it_more_often(defect):
    make_mails(50, status="dead_lettered")
    job = started()
    run_batch()
    for number in range(1, MAX_TRIES + 1):
        together(4, lambda _: run_jobs())
        assert defect.tries == number
        let_pass(job, seconds=LONG)
    job.refresh_from_db()
    assert job.state == "failed"


@pytest.mark.django_db(transaction=True)
def test_a_failed_job_is_restarted_once_and_does_each_row_once(defect):
    make_mails(50, status="dead_lettered")
    job = failed(started())
    assert job.done_count == 20
    defect.fixed = True
    restarts = together(4, lambda _: restart_job(id=job.id))
    assert sorted(restarts) == [False, False, False, True]
    job = job_after(job)
    assert (job.state, job.error, job.tries, job.done_count) == ("done", "", 0, 50)
    assert set(logged().values()) == {1} and len(logged()) == 50
    assert statuses() == {"pending": 50}


def test_only_a_failed_job_is_restarted_and_a_failed_one_can_be_stopped(defect):
    make_mails(50, status="dead_lettered")
    job = started()
    assert restart_job(id=job.id) is False
    failed(job)
    assert BulkJob.objects.stop(id=job.id) is True
    job.refresh_from_db()
    assert (job.state, job.error) == ("stopped", "ValueError: a defect")
    assert restart_job(id=job.id) is False


def test_an_unknown_action_is_left_alone_for_an_hour_then_fails_and_runs_where_it_is_known(wakes):
    """It may belong to a newer release, whose processes work at it."""
    make_mail(status="dead_lettered")
    job = started()
    wakes.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(ACTIONS, RESEND.name)
        let_pass(job, seconds=3590)
        before = BulkJob.objects.values().get()
        wake_for_unfinished()
        job_after(job)
        assert BulkJob.objects.values().get() == before and wakes == []
        let_pass(job, seconds=3600)
        wake_for_unfinished()
        assert len(wakes) == 1
        job = job_after(job)
        error = "No process knew the action notifications.resend for an hour."
        assert (job.state, job.error) == ("failed", error)
    assert restart_job(id=job.id) is True
    job = job_after(job)
    assert (job.state, job.error, job.done_count) == ("done", "", 1)


@pytest.mark.django_db(transaction=True)
def test_a_lost_connection_uses_up_no_try_of_a_job():
    make_mail(status="dead_lettered")
    job = started()

    def change(ids):
        with psycopg.connect(dsn(), autocommit=True) as killer:
            killer.execute("SELECT pg_terminate_backend(%s)", [connection.connection.info.backend_pid])
        return RESEND.change(ids)

    with resending(change), pytest.raises(OperationalError):
        run_jobs()
    connection.close()
    job.refresh_from_db()
    assert (job.state, job.tries) == ("running", 1)  # the page says for what it waits
    assert "terminating connection" in job.error
    job = job_after(job, seconds=10)
    assert (job.state, job.done_count, job.error) == ("done", 1, "")


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("SELECT 1/0", DataError),
        ("SET LOCAL statement_timeout=1; SELECT pg_sleep(9)", OperationalError),
    ],
)
def test_what_the_database_refuses_is_the_jobs_error(statement, error):
    def change(ids):
        with connection.cursor() as cursor:
            cursor.execute(statement)

    make_mail(status="dead_lettered")
    with resending(change):
        job = job_after(started())
    assert (job.state, job.tries) == ("running", 1) and job.error.startswith(error.__name__)
