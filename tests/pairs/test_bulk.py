"""Bulk jobs, and what else changes the same e-mails."""

from __future__ import annotations

import pytest

from notifications.models import EmailNotification
from outbox import bulk
from outbox.models import BulkJob
from outbox.retention import rollover
from tests.bulk import run_jobs
from tests.factories import make_mail
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
