"""The admin's page of providers."""

from __future__ import annotations

import datetime as dt
import re

import pytest
from django.db.models.functions import Now

from notifications.models import ProviderTest
from tests.kit.acts import acts
from tests.kit.people import staff_client
from tests.kit.providers import smtp
from tests.kit.words import drain
from web.admin.page_limits import MOST, TURNS

__all__ = ["smtp"]

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
        assert acts().count() == 2

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


class TestATest:
    """Its results are tested in tests/providers/test_provider_test.py."""

    PAGE = "/admin/providers/"
    GIVEN = {"test": "on", "provider": "smtp", "to": "ann@example.com", "event": "order.paid"}

    @pytest.fixture(autouse=True)
    def _smtp(self, settings, smtp):
        settings.EMAIL_PROVIDERS = ["smtp"]

    def test_is_shown_at_an_address_that_sends_no_second_one_and_is_logged_without_the_address(
        self, admin_client, smtp
    ):
        assert b'name="test"' in admin_client.get(self.PAGE).content
        page = admin_client.post(self.PAGE, self.GIVEN, follow=True)
        test = ProviderTest.objects.get()
        assert page.redirect_chain[-1][0] == f"{self.PAGE}?test={test.id}#test-state"
        for _ in range(2):
            page = admin_client.get(self.PAGE, {"test": str(test.id)})
            assert b"smtp accepted the e-mail of order.paid from" in page.content
        assert b"data-refresh" not in page.content  # nothing more is awaited
        assert ProviderTest.objects.count() == len(smtp.messages) == 1
        act = acts().get()
        assert (act.subject_id, act.subject) == (str(test.id), "provider smtp")
        assert "Sent a test." in act.act and "ann@" not in act.act

    def test_that_waits_for_its_webhook_is_refreshed(self, admin_client, settings):
        settings.WEBHOOKS_UNSIGNED = True
        test = ProviderTest.objects.create(
            provider="sendgrid", address_hash="x", accepted=True, answer="Yes."
        )
        page = admin_client.get(self.PAGE, {"test": str(test.id)}).content.decode()
        assert "data-refresh" in page and "data-waits" in page and "Waiting up to 60 s" in page
        part = admin_client.get(self.PAGE, {"test": str(test.id), "part": "1"}).content.decode()
        assert "Waiting up to 60 s" in part and "<html" not in part
        ProviderTest.objects.update(sent_at=Now() - dt.timedelta(seconds=61))
        part = admin_client.get(self.PAGE, {"test": str(test.id), "part": "1"}).content.decode()
        assert "data-waits" not in part and "Check the webhook" in part

    @pytest.mark.parametrize("id", ["x", "", "01940000-0000-7000-8000-000000000000"])
    def test_that_does_not_exist_is_not_shown(self, admin_client, id):
        page = admin_client.get(self.PAGE, {"test": id, "part": "1"}).content
        assert b"<html" in page and b"Test of" not in page

    @pytest.mark.parametrize("wrong", [{"provider": "x"}, {"to": "ann"}, {"event": "x"}])
    def test_of_something_unknown_is_refused_with_what_would_be_right(self, admin_client, wrong, smtp):
        page = admin_client.post(self.PAGE, self.GIVEN | wrong, follow=True)
        assert b"Nothing was sent. " in page.content and b" Use " in page.content
        assert not ProviderTest.objects.exists() and not smtp.messages

    def test_needs_the_permission(self, smtp):
        test = ProviderTest.objects.create(provider="smtp", address_hash="x", accepted=True, answer="Yes.")
        client = staff_client("view_emailnotification")
        page = client.get(self.PAGE, {"test": str(test.id)}).content
        assert b'name="test"' not in page and b"Yes." not in page
        assert client.post(self.PAGE, self.GIVEN).status_code == 403
        assert ProviderTest.objects.count() == 1 and not smtp.messages

    def test_waits_while_the_slow_pages_have_no_turn(self, admin_client, smtp):
        keys = [("preview", f"user-{number}") for number in range(MOST)]
        for key in keys:
            TURNS.take(key, is_newest_wanted=False)
        try:
            assert admin_client.post(self.PAGE, self.GIVEN).status_code == 429
        finally:
            for key in keys:
                TURNS.give(key)
        assert not ProviderTest.objects.exists() and not smtp.messages
