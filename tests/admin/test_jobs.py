"""The admin's pages of background jobs: who sees, stops and restarts one, and why it failed."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client

from runtime.models import AuditRow
from tests.kit.admin import JOBS, listed, statements_of
from tests.kit.jobs import job_after, run_jobs, small_batches, started
from tests.kit.mails import make_mail, make_mails, statuses
from tests.kit.people import make_user, staff_client
from tests.kit.words import ACTIONS, BulkJob

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def wakes():
    with small_batches(rows=500) as wakes:
        yield wakes


@pytest.fixture
def job() -> BulkJob:
    """Start a job of a user named ann, who may resend e-mails and nothing else."""
    make_mails(3, status="dead_lettered")
    ann = make_user("ann")
    ann.user_permissions.set(Permission.objects.filter(codename="resend_emailnotification"))
    return started(user=ann)


@pytest.fixture
def failed(job: BulkJob) -> BulkJob:
    BulkJob.objects.fail(id=job.id, error="ValueError: a defect")
    return job


def owner_of(job: BulkJob) -> Client:
    client = Client()
    assert job.user is not None
    client.force_login(job.user)
    return client


def page_of(client: Client, job: BulkJob) -> str:
    return client.get(f"{JOBS}{job.id}/change/").content.decode()


def press(client: Client, job: BulkJob, button: str) -> Any:
    return client.post(f"{JOBS}{job.id}/{button}/", follow=True)


def test_a_job_is_seen_and_stopped_by_whom_it_concerns(job):
    owner, watcher = owner_of(job), staff_client("view_bulkjob", name="watcher")
    assert "job-stop" in page_of(owner, job) and "job-stop" not in page_of(watcher, job)
    columns = re.findall(r'<div class="text"><(?:a|span)[^>]*>([^<]+)<', watcher.get(JOBS).content.decode())
    assert columns == ["What", "State", "Done", "Left alone", "By", "Started"]
    other = staff_client("view_emailnotification", "discard_emailnotification", name="other")
    assert other.get(f"{JOBS}{job.id}/change/").status_code in (403, 404)
    assert press(watcher, job, "stop").status_code == 403
    assert b"Stopped." in press(owner, job, "stop").content
    run_jobs()
    assert statuses() == {"dead_lettered": 3}
    assert b"had ended already" in press(owner, job, "stop").content


def test_a_failed_job_says_why_and_its_owner_restarts_it_once(
    failed, wakes, django_capture_on_commit_callbacks
):
    owner = owner_of(failed)
    html = page_of(owner, failed)
    assert all(part in html for part in ("ValueError: a defect", "job-restart", "job-stop", ">failed<"))
    wakes.clear()
    with django_capture_on_commit_callbacks(execute=True):
        assert b"Restarted." in press(owner, failed, "restart").content
    assert len(wakes) == 1
    assert job_after(failed).state == "done" and statuses() == {"pending": 3}
    assert b"had not failed" in press(owner, failed, "restart").content
    assert AuditRow.objects.filter(subject_id=str(failed.id)).latest("id").act == "Restarted."


def test_a_failed_job_that_is_stopped_keeps_its_reason_and_is_not_restarted(failed):
    owner = owner_of(failed)
    press(owner, failed, "stop")
    html = page_of(owner, failed)
    assert "ValueError: a defect" in html and "job-restart" not in html
    press(owner, failed, "restart")
    failed.refresh_from_db()
    assert failed.state == "stopped"


def test_a_restart_needs_the_permission_of_the_action_and_a_post(failed):
    watcher = staff_client("view_bulkjob", name="watcher")
    assert "job-restart" not in page_of(watcher, failed)
    assert press(watcher, failed, "restart").status_code == 403
    assert owner_of(failed).get(f"{JOBS}{failed.id}/restart/").status_code == 405
    failed.user.user_permissions.clear()
    assert press(owner_of(failed), failed, "restart").status_code == 403
    operator = staff_client("view_bulkjob", "resend_emailnotification", name="operator")
    assert b"Restarted." in press(operator, failed, "restart").content
    failed.refresh_from_db()
    assert (failed.state, failed.username) == ("running", "ann")


def test_a_job_of_an_unknown_action_is_shown_and_cannot_be_restarted(failed, admin_client, monkeypatch):
    monkeypatch.delitem(ACTIONS, failed.action)
    assert b"notifications.resend" in admin_client.get(JOBS).content
    assert "job-restart" not in page_of(admin_client, failed)
    assert press(admin_client, failed, "restart").status_code == 403


def test_a_state_that_this_release_does_not_know_is_shown_as_it_is(job, admin_client):
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE bulk_jobs DROP CONSTRAINT bulk_jobs_state_known")
        cursor.execute("UPDATE bulk_jobs SET state = 'resting', finished_at = now()")
    assert b">resting<" in admin_client.get(JOBS).content


def test_its_page_leads_to_the_rows_that_it_left_alone_by_reason(admin_client):
    sent, pending, dead = (make_mail(status=status) for status in ("sent", "pending", "dead_lettered"))
    ids = f"{sent.id},{pending.id},{dead.id}"
    job = job_after(started(ids=ids, user=User.objects.get(username="admin")))
    links = re.findall(r'<b>1</b> it is (\w+), .*? <a href="([^"]*)">Show it', page_of(admin_client, job))
    assert {why: listed(admin_client, html.unescape(url)) for why, url in links} == {
        "sent": [sent.id],
        "pending": [pending.id],
    }


def test_its_page_takes_at_most_eight_statements(admin_client, job):
    page_of(admin_client, job)  # fills the caches of permissions and content types
    assert len(statements_of(admin_client, f"{JOBS}{job.id}/change/")) <= 8
