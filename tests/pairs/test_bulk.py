"""Bulk jobs, and what else changes the same e-mails."""

from __future__ import annotations

import datetime as dt

import pytest
from django.contrib.admin.models import LogEntry
from django.db import OperationalError, connection
from django.db.models.functions import Now

from tests.kit.jobs import run_jobs
from tests.kit.mails import make_mail
from tests.kit.months import Steps, fill, make_partition, states
from tests.kit.words import RETRY_BASE, BulkJob, EmailNotification, bulk, erase_person, rollover
from tests.rules.jobs.test_bulk import logged, start

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch):
    monkeypatch.setattr(bulk, "CHUNK", 2)
    monkeypatch.setattr(bulk.waker, "wake", lambda: None)


def test_a_job_whose_next_rows_were_archived_meanwhile_goes_on_with_those_that_are_left(archive_folder):
    old = make_partition(EmailNotification, back=4)
    fill(old, 5, status="discarded")
    young = [make_mail(status="discarded") for _ in range(3)]
    job = start(filter={"status": "discarded"})
    assert not rollover.rollover(report=Steps()).held
    assert states()[old.name] == "detached"
    run_jobs()
    job.refresh_from_db()
    assert (job.state, job.done_count, job.total) == (BulkJob.State.DONE, 3, 8)
    assert logged().keys() == {str(mail.id) for mail in young}


def test_a_row_that_a_job_resent_keeps_its_old_month_attached(archive_folder):
    old = make_partition(EmailNotification, back=4)
    fill(old, 3, status="discarded")
    start(filter={"status": "discarded"})
    run_jobs()
    assert [held.partition for held in rollover.rollover(report=Steps()).held] == [old.name]
    assert len(EmailNotification.objects.claim(limit=5)) == 3


def test_a_job_whose_reason_has_the_address_goes_on_after_the_erasure_without_the_reason():
    others = [make_mail(recipient_email=f"other{n}@example.com", status="dead_lettered") for n in range(5)]
    job = start()
    BulkJob.objects.filter(id=job.id).update(reason="ann@example.com called")
    assert bulk.run_batch()
    erase_person(email="ann@example.com", report=lambda step, **_: None, force=True)
    run_jobs()
    job.refresh_from_db()
    assert (job.state, job.done_count, job.reason) == (BulkJob.State.DONE, 5, "[erased]")
    assert logged() == dict.fromkeys((str(mail.id) for mail in others), 1)
    messages = LogEntry.objects.values_list("change_message", flat=True)
    assert not [message for message in messages if "ann@" in message]
    assert len([message for message in messages if "[erased]" in message]) == 5


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_a_job_whose_server_turns_read_only_in_a_batch_does_each_row_once_on_the_next(monkeypatch, batch):
    """A former primary that was demoted answers like this. The next connection finds the new one."""
    mails = [make_mail(status="dead_lettered") for _ in range(5)]
    job = start()
    log, calls = bulk._log, []

    def demoted(*arguments):
        calls.append(arguments)
        if len(calls) == batch:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION READ ONLY")
        log(*arguments)

    monkeypatch.setattr(bulk, "_log", demoted)
    with pytest.raises(OperationalError, match="read-only"):
        run_jobs()
    job.refresh_from_db()
    assert (job.state, job.error, job.tries, job.done_count) == ("running", "", 1, (batch - 1) * 2)
    goes_on(job)
    assert logged() == dict.fromkeys((str(mail.id) for mail in mails), 1)


def test_a_job_whose_commit_is_lost_with_the_server_does_no_row_twice(monkeypatch):
    """The server committed the batch, and the connection broke before its answer."""
    mails = [make_mail(status="dead_lettered") for _ in range(5)]
    job = start()
    work = bulk._work

    def lose_the_answer(*arguments):
        work(*arguments)
        connection.close()
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(bulk, "_work", lose_the_answer)
    for _ in range(3):
        with pytest.raises(OperationalError):
            run_jobs()
    job.refresh_from_db()
    assert (job.state, job.error, job.tries, job.done_count) == ("done", "", 0, 5)
    assert logged() == dict.fromkeys((str(mail.id) for mail in mails), 1)


def goes_on(job: BulkJob) -> None:
    """Let the time until the next try pass, and check that the job then ends."""
    BulkJob.objects.filter(id=job.id).update(updated_at=Now() - dt.timedelta(seconds=RETRY_BASE))
    run_jobs()
    job.refresh_from_db()
    assert (job.state, job.error, job.tries, job.done_count) == ("done", "", 0, 5)
