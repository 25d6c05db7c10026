"""The admin's page of providers."""

from __future__ import annotations

import re

import pytest
from django.contrib.admin.models import LogEntry

from notifications import trials
from tests.kit.people import staff_client
from tests.kit.words import BulkJob, drain, job_waker

pytestmark = pytest.mark.django_db


@pytest.mark.usefixtures("valkey_url")
class TestProviders:
    PAGE = "/admin/providers/"

    def test_the_page_shows_each_and_a_persons_word_is_for_every_process_and_logged(self, admin_client):
        assert b">working<" in admin_client.get(self.PAGE).content
        page = admin_client.post(self.PAGE, {"provider": "sendgrid", "to": "open"}, follow=True)
        assert b"forced open" in page.content and b"Forced sendgrid open." in page.content
        assert re.search(rb"<time [^>]+>\d{4}-\d\d-\d\d ", page.content)  # as every page writes a time
        drain.reset()
        assert drain.gate().enter().provider == ""
        assert b"open" in admin_client.get("/admin/notifications/emailnotification/").content
        admin_client.post(self.PAGE, {"provider": "sendgrid", "to": ""})
        assert drain.gate().enter().provider == "sendgrid"
        assert LogEntry.objects.count() == 2

    def test_a_provider_that_works_again_has_no_old_error(self, admin_client):
        gate = drain.gate()
        choice = gate.enter()
        gate.failed(choice, message="e-mail 1", reason="transient 503 Busy")
        assert b"503 Busy" in admin_client.get(self.PAGE).content
        gate.accepted(choice)
        assert b"503 Busy" not in admin_client.get(self.PAGE).content

    def test_without_the_permission_it_is_read_only(self):
        client = staff_client("view_emailnotification")
        assert b"Force open" not in client.get(self.PAGE).content
        assert client.post(self.PAGE, {"provider": "sendgrid", "to": "open"}).status_code == 403
        assert drain.gate().enter().provider == "sendgrid"
        assert staff_client(name="other").get(self.PAGE).status_code == 403

    @pytest.mark.parametrize("wrong", [{"provider": "x", "to": "open"}, {"provider": "sendgrid", "to": "x"}])
    def test_what_it_does_not_know_is_404(self, admin_client, wrong):
        assert admin_client.post(self.PAGE, wrong).status_code == 404


class TestATrial:
    """The job itself is tested in tests/providers/test_trials.py."""

    PAGE = "/admin/providers/"
    GIVEN = {"try": "on", "provider": "sendgrid", "to": "ann@example.com", "event": "order.paid"}

    @pytest.fixture(autouse=True)
    def _asleep(self, monkeypatch):
        monkeypatch.setattr(job_waker, "wake", lambda: None)

    def test_starts_a_job_whose_page_polls_its_steps_and_is_logged_without_the_address(self, admin_client):
        assert b'name="try"' in admin_client.get(self.PAGE).content
        page = admin_client.post(self.PAGE, self.GIVEN, follow=True)
        job = BulkJob.objects.get()
        assert page.redirect_chain[-1][0] == f"/admin/runtime/bulkjob/{job.id}/change/"
        assert b"Try a provider: sendgrid, order.paid<" in page.content
        assert b'href="/admin/providers/">To the providers' in page.content
        assert (job.action, job.address, job.steps) == (trials.TRY, "ann@example.com", [])
        BulkJob.objects.add_step(id=job.id, kind="sending", text="Send the e-mail.")
        answer = admin_client.get(f"/admin/runtime/bulkjob/{job.id}/progress/").json()
        assert [step["text"] for step in answer["steps"]] == ["Send the e-mail."]
        assert b"Send the e-mail." in admin_client.get(page.redirect_chain[-1][0]).content
        act = LogEntry.objects.get()
        assert "Started a trial." in act.change_message and "ann@" not in act.change_message

    @pytest.mark.parametrize("wrong", [{"provider": "x"}, {"to": "ann"}, {"event": "x"}])
    def test_of_something_unknown_is_refused_with_what_would_be_right(self, admin_client, wrong):
        page = admin_client.post(self.PAGE, self.GIVEN | wrong, follow=True)
        assert b"Nothing was sent. U" in page.content and not BulkJob.objects.exists()

    def test_needs_the_permission(self):
        client = staff_client("view_emailnotification")
        assert b'name="try"' not in client.get(self.PAGE).content
        assert client.post(self.PAGE, self.GIVEN).status_code == 403
        assert not BulkJob.objects.exists()
