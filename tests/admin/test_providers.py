"""The admin's page of providers."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry

from tests.kit.people import staff_client
from tests.kit.words import process

pytestmark = pytest.mark.django_db


class TestProviders:
    PAGE = "/admin/providers/"

    @pytest.fixture(autouse=True)
    def _fresh(self, valkey_url):
        process.start_anew()
        yield
        process.start_anew()

    def test_the_page_shows_each_and_a_persons_word_is_for_every_process_and_logged(self, admin_client):
        assert b"closed (sends)" in admin_client.get(self.PAGE).content
        page = admin_client.post(self.PAGE, {"provider": "sendgrid", "to": "open"}, follow=True)
        assert b"forced open" in page.content and b"Forced sendgrid open." in page.content
        process.start_anew()
        assert process.gate().enter().provider == ""
        assert b"open" in admin_client.get("/admin/notifications/emailnotification/").content
        admin_client.post(self.PAGE, {"provider": "sendgrid", "to": ""})
        assert process.gate().enter().provider == "sendgrid"
        assert LogEntry.objects.count() == 2

    def test_without_the_permission_it_is_read_only(self):
        client = staff_client("view_emailnotification")
        assert b"Force open" not in client.get(self.PAGE).content
        assert client.post(self.PAGE, {"provider": "sendgrid", "to": "open"}).status_code == 403
        assert process.gate().enter().provider == "sendgrid"
        assert staff_client(name="other").get(self.PAGE).status_code == 403

    @pytest.mark.parametrize("wrong", [{"provider": "x", "to": "open"}, {"provider": "sendgrid", "to": "x"}])
    def test_what_it_does_not_know_is_404(self, admin_client, wrong):
        assert admin_client.post(self.PAGE, wrong).status_code == 404
