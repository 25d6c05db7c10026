"""Bulk jobs, and what else changes the same e-mails: archives, erasures, pauses, and lost servers."""

from __future__ import annotations

import pytest
from django.db import OperationalError, connection, transaction

from runtime.audit import Actor
from tests.kit.acts import told_acts
from tests.kit.jobs import job_after, logged, resending, run_jobs, started
from tests.kit.mails import make_mail, make_mails, statuses
from tests.kit.months import Steps, fill, make_partition, states
from tests.kit.orders import make_order
from tests.kit.words import (
    ERASED_ADDRESS,
    RESEND,
    RETRIES,
    BulkJob,
    EmailNotification,
    claim,
    erase_person,
    pauses,
    rollover,
    run_batch,
)

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])


def test_a_job_whose_next_rows_were_archived_meanwhile_goes_on_with_those_that_are_left(archive_folder):
    old = make_partition(EmailNotification, back=4)
    fill(old, 5, status="discarded")
    young = [make_mail(status="discarded") for _ in range(3)]
    job = started(status="discarded")
    assert not rollover.rollover(report=Steps()).held
    assert states()[old.name] == "detached"
    job = job_after(job)
    assert (job.state, job.done_count, job.total) == ("done", 3, 8)
    assert logged().keys() == {str(mail.id) for mail in young}


def test_a_row_that_a_job_resent_keeps_its_old_month_attached(archive_folder):
    old = make_partition(EmailNotification, back=4)
    fill(old, 3, status="discarded")
    job_after(started(status="discarded"))
    assert [held.partition for held in rollover.rollover(report=Steps()).held] == [old.name]
    assert len(claim(limit=5)) == 3


def test_a_job_goes_on_while_delivery_is_paused_and_its_emails_leave_after_the_pause():
    make_mails(5, status="dead_lettered")
    pauses.pause(parts=["delivery"], reason="", by=Actor("x"))
    job = job_after(started())
    assert (job.state, job.done_count) == ("done", 5)
    assert claim(limit=9) == []
    pauses.resume(parts=["delivery"], by=Actor("x"))
    assert len(claim(limit=9)) == 5


@pytest.mark.parametrize("status", ["dead_lettered", "discarded"])
def test_an_erasure_between_two_batches_takes_its_emails_out_of_the_job_and_nobody_sends_them(
    status, archive_folder
):
    ann, bob = make_order(email="ann@example.com"), make_order(email="bob@example.com")
    for _ in range(3):
        for order in (ann, bob):
            make_mail(order_id=order.id, recipient_email=order.email, status=status)
    job = started(status=status)
    assert run_batch() is True
    assert statuses() == {"pending": 2, status: 4}
    erase_person(email="bob@example.com", report=Steps(), force=True)
    job = job_after(job)
    assert (job.state, job.done_count, job.error) == ("done", 4, "")
    hers, his = (EmailNotification.objects.filter(order_id=order.id) for order in (ann, bob))
    assert set(his.values_list("status", "recipient_email")) == {("discarded", ERASED_ADDRESS)}
    assert {mail.id for mail in claim(limit=9)} == {mail.id for mail in hers}


def test_a_job_whose_reason_has_the_address_goes_on_after_the_erasure_without_the_reason(archive_folder):
    others = [make_mail(recipient_email=f"other{n}@example.com", status="dead_lettered") for n in range(5)]
    job = started()
    BulkJob.objects.filter(id=job.id).update(reason="ann@example.com called")
    assert run_batch()
    erase_person(email="ann@example.com", report=Steps(), force=True)
    job = job_after(job)
    assert (job.state, job.done_count, job.reason) == ("done", 5, "[erased]")
    assert logged() == dict.fromkeys((str(mail.id) for mail in others), 1)
    messages = told_acts()
    assert ["[erased]" in message and "ann@" not in message for message in messages] == [True] * 5


@pytest.mark.parametrize("batch", [1, 3])
def test_a_job_whose_server_turns_read_only_in_a_batch_does_each_row_once_on_the_next(batch):
    """A former primary that was demoted answers like this. The next connection finds the new one."""
    mails = [make_mail(status="dead_lettered") for _ in range(5)]
    job, batches = started(), []

    def demoted(ids):
        result = RESEND.change(ids)
        batches.append(ids)
        if len(batches) == batch:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION READ ONLY")
        return result

    with resending(demoted), pytest.raises(OperationalError, match="read-only"):
        run_jobs()
    job.refresh_from_db()
    assert (job.state, job.tries, job.done_count) == ("running", 1, (batch - 1) * 2)
    assert "read-only" in job.error
    job = job_after(job, seconds=RETRIES.base_seconds)
    assert (job.state, job.error, job.tries, job.done_count) == ("done", "", 0, 5)
    assert logged() == dict.fromkeys((str(mail.id) for mail in mails), 1)


def test_a_job_whose_commit_is_lost_with_the_server_does_no_row_twice():
    """The server committed the batch, and the connection broke before its answer."""
    mails = [make_mail(status="dead_lettered") for _ in range(5)]
    job = started()

    def lose_the_answer():
        connection.close()
        raise OperationalError("server closed the connection unexpectedly")

    def change(ids):
        transaction.on_commit(lose_the_answer)
        return RESEND.change(ids)

    with resending(change):
        for _ in range(3):
            with pytest.raises(OperationalError):
                run_jobs()
    job.refresh_from_db()
    assert (job.state, job.error, job.tries, job.done_count) == ("done", "", 0, 5)
    assert logged() == dict.fromkeys((str(mail.id) for mail in mails), 1)
