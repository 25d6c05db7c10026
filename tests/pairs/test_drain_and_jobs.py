"""`manage.py drain_outbox` sends e-mails whatever bulk jobs do: jobs that cannot run, and long ones."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pytest
from django.core.management import call_command
from django.db.models.functions import Now

from tests.kit.commands import provider, sent, stopped_when
from tests.kit.jobs import resending, started
from tests.kit.mails import make_mail, make_mails
from tests.kit.words import ACTIONS, RESEND, BulkJob, DrainResult
from tests.kit.words import drain as delivery

__all__ = ["provider"]  # a fixture
pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])


@pytest.mark.parametrize("mode", [(), ("--loop",)])
def test_a_job_that_fails_does_not_keep_drain_outbox_from_sending(provider, settings, caplog, mode):
    settings.POLL_INTERVAL = 0.2
    make_mail(status="dead_lettered")
    job = started()
    make_mail()

    def change(ids):
        raise ValueError(f"{len(ids)} rows")

    def both() -> bool:
        job.refresh_from_db()
        return sent() == 1 and bool(job.error)

    with resending(change), stopped_when(both):
        call_command("drain_outbox", *mode)
    assert (sent(), job.state) == (1, "running")
    assert caplog.text.count("bulk job failed") == 1


def test_a_job_of_an_unknown_action_does_not_keep_drain_outbox_from_sending(provider, settings, monkeypatch):
    settings.POLL_INTERVAL = 0.2
    make_mail(status="dead_lettered")
    job = started()
    monkeypatch.delitem(ACTIONS, RESEND.name)
    make_mail()
    with stopped_when(lambda: sent() == 1):
        call_command("drain_outbox", "--loop")
    job.refresh_from_db()
    assert (sent(), job.state, job.error) == (1, "running", "")


def test_drain_outbox_sends_between_two_batches_of_a_bulk_job(provider, settings):
    """Each e-mail that a batch makes due is sent before the next batch begins."""
    settings.POLL_INTERVAL = 0.2
    make_mails(6, status="dead_lettered")
    sent_before: list[int] = []

    def change(ids):
        sent_before.append(sent())
        return RESEND.change(ids)

    job = started()
    make_mail()
    with resending(change), stopped_when(lambda: sent() == 7 and not BulkJob.objects.running().exists()):
        call_command("drain_outbox", "--loop")
    job.refresh_from_db()
    assert (sent_before, job.state) == ([1, 3, 5], "done")


def test_a_row_that_becomes_due_between_two_polls_is_drained_without_a_poll(provider, settings, monkeypatch):
    """A poll reads everything, so a loop that polled for each due row would cost more than the rows."""
    settings.POLL_INTERVAL = 3600.0
    polls: list[int] = []
    poll: Callable[[], DrainResult | None] = delivery.poll

    def counted() -> DrainResult | None:
        polls.append(sent())
        return poll()

    monkeypatch.setattr(delivery, "poll", counted)
    make_mail(next_attempt_at=Now() + dt.timedelta(seconds=0.5))
    with stopped_when(lambda: sent() == 1):
        call_command("drain_outbox", "--loop")
    assert polls == [0]
