"""The admin's pages of bulk jobs that failed: the list, the reason, restart and stop."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client

from outbox.admin.jobs import _pill
from tests.kit.jobs import run_jobs
from tests.kit.mails import make_mails, statuses
from tests.kit.people import staff_client
from tests.kit.words import BulkJob, bulk

pytestmark = pytest.mark.django_db
LIST = "/admin/outbox/bulkjob/"


@pytest.fixture(autouse=True)
def no_worker(monkeypatch):
    monkeypatch.setattr(bulk.waker, "wake", lambda: None)


@pytest.fixture
def failed() -> BulkJob:
    """Make a job of a user named ann that failed before its first batch was finished."""
    make_mails(3, status="dead_lettered")
    ann = User.objects.create_user("ann", is_staff=True)
    ann.user_permissions.set(Permission.objects.filter(codename="resend_emailnotification"))
    job = bulk.start_job(action="notifications.resend", filter={"status": "dead_lettered"}, user=ann)
    BulkJob.objects.fail(id=job.id, error="ValueError: a defect")
    return job


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_a_failed_job_says_why_and_its_owner_restarts_it(
    failed, django_capture_on_commit_callbacks, monkeypatch
):
    woken = []
    monkeypatch.setattr(bulk.waker, "wake", lambda: woken.append(1))
    owner, page = client_of(failed.user), f"{LIST}{failed.id}/change/"
    html = owner.get(page).content.decode()
    assert (
        "ValueError: a defect" in html and "job-restart" in html and "job-stop" in html and ">failed<" in html
    )
    with django_capture_on_commit_callbacks(execute=True):
        done = owner.post(f"{LIST}{failed.id}/restart/", follow=True)
    assert done.redirect_chain[-1][0] == page and b"Restarted." in done.content
    assert woken == [1]
    run_jobs()
    assert statuses() == {"pending": 3}
    assert LogEntry.objects.get(object_id=str(failed.id)).change_message == "Restarted."
    again = owner.post(f"{LIST}{failed.id}/restart/", follow=True)
    assert b"had not failed" in again.content
    assert LogEntry.objects.filter(object_id=str(failed.id)).count() == 1


def test_a_failed_job_is_stopped_and_keeps_its_reason(failed):
    owner = client_of(failed.user)
    assert b"Stopped." in owner.post(f"{LIST}{failed.id}/stop/", follow=True).content
    html = owner.get(f"{LIST}{failed.id}/change/").content.decode()
    assert "ValueError: a defect" in html and "job-restart" not in html
    assert owner.post(f"{LIST}{failed.id}/restart/").status_code == 302
    failed.refresh_from_db()
    assert failed.state == "stopped"


def test_a_restart_needs_the_permission_of_the_action_and_a_post(failed):
    restart = f"{LIST}{failed.id}/restart/"
    watcher = staff_client("view_bulkjob", name="watcher")
    assert b"job-restart" not in watcher.get(f"{LIST}{failed.id}/change/").content
    assert watcher.post(restart).status_code == 403
    assert client_of(failed.user).get(restart).status_code == 405
    failed.user.user_permissions.set(Permission.objects.filter(codename="view_bulkjob"))
    assert client_of(failed.user).post(restart).status_code == 403
    operator = staff_client("view_bulkjob", "resend_emailnotification", name="operator")
    assert b"Restarted." in operator.post(restart, follow=True).content
    failed.refresh_from_db()
    assert (failed.state, failed.username) == ("running", "ann")


def test_a_job_of_an_unknown_action_is_shown_and_cannot_be_restarted(failed, admin_client, monkeypatch):
    monkeypatch.delitem(bulk.ACTIONS, failed.action)
    assert b"notifications.resend" in admin_client.get(LIST).content
    assert b"job-restart" not in admin_client.get(f"{LIST}{failed.id}/change/").content
    assert admin_client.post(f"{LIST}{failed.id}/restart/").status_code == 403


def test_a_state_that_this_release_does_not_know_is_shown_as_it_is():
    assert ">resting<" in _pill(BulkJob(state="resting"))


def test_the_first_page_leads_to_failed_jobs_until_somebody_decides(failed, admin_client):
    def tile():
        page = admin_client.get("/admin/")
        return next(tile for tile in page.context["tiles"] if tile["label"] == "failed jobs")

    assert (tile()["value"], tile()["bad"]) == ("1", True)
    assert [job.id for job in admin_client.get(tile()["url"]).context["cl"].result_list] == [failed.id]
    BulkJob.objects.stop(id=failed.id)
    assert (tile()["value"], tile()["bad"]) == ("0", False)
    assert list(admin_client.get(tile()["url"]).context["cl"].result_list) == []
    mails_only = staff_client("view_emailnotification", name="mails")
    assert all(one["label"] != "failed jobs" for one in mails_only.get("/admin/").context["tiles"])
