"""Bulk jobs, and what else changes the same e-mails."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry

from notifications.models import EmailNotification
from orders.privacy.erasure import erase_person
from outbox import bulk
from outbox.models import BulkJob
from outbox.retention import rollover
from tests.bulk import run_jobs
from tests.factories import make_mail, make_order
from tests.outbox.retention.months import Steps, fill, make_partition, states
from tests.outbox.test_bulk import logged, start

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


def test_a_job_whose_reason_names_a_person_goes_on_after_the_erasure_without_the_name():
    make_order(email="ann@example.com", name="Ann de Groot")
    others = [make_mail(recipient_email=f"other{n}@example.com", status="dead_lettered") for n in range(5)]
    job = start(reason="Ann de Groot called")
    assert bulk.run_batch()
    erase_person(email="ann@example.com", report=lambda step, **_: None, force=True)
    run_jobs()
    job.refresh_from_db()
    assert (job.state, job.done_count, job.reason) == (BulkJob.State.DONE, 5, "[erased]")
    assert logged() == dict.fromkeys((str(mail.id) for mail in others), 1)
    messages = LogEntry.objects.values_list("change_message", flat=True)
    assert not [message for message in messages if "Groot" in message]
    assert len([message for message in messages if "[erased]" in message]) == 5
