"""A bulk job next to the other features that change the same rows: a pause, an erasure."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command

from tests.kit.jobs import run_jobs
from tests.kit.mails import make_mail, make_mails, statuses
from tests.kit.months import Steps
from tests.kit.orders import make_order
from tests.kit.words import ERASED_ADDRESS, EmailNotification, bulk, drain, erasure
from tests.rules.outbox.test_delivery import sandbox

__all__ = ["sandbox"]  # a fixture

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(bulk, "CHUNK", 10)
    monkeypatch.setattr(bulk.waker, "wake", lambda: None)


def start(status: str = "dead_lettered"):
    user = User.objects.create_superuser("ann")
    return bulk.start_job(action="notifications.resend", filter={"status": status}, user=user)


def test_a_job_goes_on_while_delivery_is_paused_and_its_emails_leave_after_the_pause(sandbox):
    make_mails(25, status="dead_lettered")
    job = start()
    call_command("pause", "delivery", "--reason", "the provider asked us to")
    while bulk.run_batch():
        drain.poll()
    job.refresh_from_db()
    assert (job.state, job.done_count) == ("done", 25)
    assert statuses() == {"pending": 25}
    call_command("resume", "--all")
    drain.poll()
    assert statuses() == {"sent": 25}


@pytest.mark.parametrize("status", ["dead_lettered", "discarded"])
@pytest.mark.usefixtures("archive_folder")
def test_an_erasure_between_two_batches_takes_its_emails_out_of_the_job(status):
    ann, bob = make_order(email="ann@example.com"), make_order(email="bob@example.com")
    for order in (ann, bob):
        for _ in range(10):
            make_mail(order_id=order.id, recipient_email=order.email, status=status)
    job = start(status)
    assert bulk.run_batch() is True  # Ann's
    erasure.erase_person(email="bob@example.com", report=Steps(), force=True)
    run_jobs()
    job.refresh_from_db()
    assert (job.state, job.done_count, job.error) == ("done", 10, "")
    hers, his = (EmailNotification.objects.filter(order_id=order.id) for order in (ann, bob))
    assert set(hers.values_list("status", "recipient_email")) == {("pending", "ann@example.com")}
    assert set(his.values_list("status", "recipient_email")) == {("discarded", ERASED_ADDRESS)}


@pytest.mark.usefixtures("archive_folder")
def test_what_a_job_resent_of_an_erased_person_is_not_sent(sandbox):
    order = make_order(email="bob@example.com")
    for _ in range(15):
        make_mail(order_id=order.id, recipient_email=order.email, status="dead_lettered")
    start()
    assert bulk.run_batch() is True
    assert statuses() == {"pending": 10, "dead_lettered": 5}
    erasure.erase_person(email="bob@example.com", report=Steps(), force=True)
    run_jobs()
    drain.poll()
    assert statuses() == {"discarded": 15}
