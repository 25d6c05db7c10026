"""The test of a provider, by the command and on the page: a wrong setting is named, and little is stored."""

from __future__ import annotations

import dataclasses
import datetime as dt
import html
import io
import re
import time
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from local.machine import free_port
from local.sandbox import Sandbox, WebhookSettings
from notifications import provider_tests
from notifications.changes.evidence import count_unmatched
from notifications.models import ProviderTest
from notifications.providers.webhook import Evidence
from operations.management.commands import providers as command
from runtime.audit import Actor
from tests.kit.mails import make_mail
from tests.kit.people import staff_client
from tests.kit.waiting import PATIENCE
from tests.kit.webhooks import event, post
from tests.kit.words import (
    ERASED_ADDRESS,
    PROVIDERS,
    BulkJob,
    EmailNotification,
    Heartbeat,
    Outcome,
    Status,
    Suppression,
    SuppressionReason,
    Verdict,
    address_hash,
    declarations,
    drain,
    make_key,
    pauses,
    suppress,
)

pytestmark = pytest.mark.django_db(transaction=True)
ANN = "ann@example.com"
PAGE = "/admin/providers/"


@pytest.fixture(autouse=True)
def _keys(settings, provider: Sandbox, live_server, monkeypatch):
    """Let the sandbox post signed events of SendGrid to this process, and look for them often."""
    signs, settings.SENDGRID_WEBHOOK_VERIFICATION_KEY = make_key()
    settings.EMAIL_PROVIDERS = ["sendgrid"]
    settings.ALLOWED_HOSTS = ["*"]
    url = f"{live_server.url}/webhooks"
    provider.webhooks.settings = WebhookSettings(url=url, keys={"sendgrid": signs}, delay=0.01)
    monkeypatch.setattr(command, "POLL_SECONDS", 0.05)
    Heartbeat._beat_at.clear()


@pytest.fixture
def impatient(monkeypatch) -> None:
    """Wait for a webhook only as long as a busy machine needs for one."""
    monkeypatch.setattr(provider_tests, "WAIT_SECONDS", 3.0)


def tried(name: str = "sendgrid", *, to: str = ANN) -> str:
    """Return what the command prints, with its error."""
    out = io.StringIO()
    try:
        call_command("providers", "try", name, to=to, stdout=out)
    except CommandError as error:
        out.write(f"{error} [{error.returncode}]")
    assert_little_is_stored()
    return out.getvalue()


def shown_by_the_page(name: str = "sendgrid", *, to: str = ANN) -> str:
    """Return what the page shows in the end, as text. Refresh it as admin.js does."""
    client = staff_client("view_emailnotification", "force_provider")
    form = {"test": "on", "provider": name, "to": to, "event": "order.paid"}
    answer = client.post(PAGE, form, follow=True)
    assert answer.status_code == 200
    url, text = answer.request["PATH_INFO"] + "?" + answer.request["QUERY_STRING"], answer.content.decode()
    end = time.monotonic() + PATIENCE
    while "data-waits" in text:
        assert time.monotonic() < end, text
        time.sleep(0.05)
        text = client.get(f"{url}&part=1").content.decode()
        assert "<html" not in text
    assert_little_is_stored()
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", "", text)))


def assert_little_is_stored() -> None:
    assert not EmailNotification.objects.exists() and not BulkJob.objects.exists()
    assert ANN not in str(list(ProviderTest.objects.values()))


@pytest.mark.parametrize("by", [tried, shown_by_the_page])
def test_a_right_setting_is_proved_by_the_events_of_one_real_email(provider, by):
    said = by()
    for words in (
        "sendgrid accepted the e-mail of order.paid from",
        "says: delivered",
        "settings of sendgrid work",
    ):
        assert words in said
    (mail,) = provider.mails
    test = ProviderTest.objects.get()
    assert mail.recipients == (ANN,) and mail.subject.startswith("[Test] ")
    assert mail.custom_args["notification_id"] == str(test.id)
    assert (test.accepted, test.reported, test.address_hash) == (True, "delivered", address_hash(ANN))


def test_an_id_that_no_table_can_keep_is_shown_without_what_it_cannot(provider, monkeypatch):
    provider.webhooks.settings = None
    answer = Outcome(Verdict.ACCEPTED, "sendgrid", "a\0b" + "c" * 10_000)
    monkeypatch.setattr(PROVIDERS["sendgrid"], "send", lambda _: answer)
    test = provider_tests.send_test(provider="sendgrid", to=ANN)
    assert test.accepted and "\0" not in test.answer and len(test.answer) < 400


@pytest.mark.parametrize("name", ["postmark", "mailgun"])
def test_each_provider_whose_events_the_sandbox_plays_is_proved(provider, settings, name):
    declared = declarations()[name]
    settings.EMAIL_PROVIDERS = [name]
    assert declared.make_key
    signs, verifies = declared.make_key()
    provider.webhooks.settings = dataclasses.replace(provider.webhooks.settings, keys={name: signs})
    setattr(settings, declared.webhook_key, verifies)
    assert f"settings of {name} work" in tried(name)


def _no_api_key(settings: Any, provider: Sandbox) -> str:
    settings.ANYMAIL = settings.ANYMAIL | {"SENDGRID_API_KEY": ""}
    return "Set SENDGRID_API_KEY, which is empty. Nothing was sent."


def _api_key(settings: Any, provider: Sandbox) -> str:
    settings.ANYMAIL = settings.ANYMAIL | {"SENDGRID_API_KEY": "wrong"}
    return "Check SENDGRID_API_KEY. Sending from "


def _api_url(settings: Any, provider: Sandbox) -> str:
    settings.ANYMAIL = settings.ANYMAIL | {"SENDGRID_API_URL": f"http://127.0.0.1:{free_port()}/v3/"}
    return "Check SENDGRID_API_URL. Sending from "


def _sender(settings: Any, provider: Sandbox) -> str:
    settings.DEFAULT_FROM_EMAIL = "Shop <orders@unverified.test>"
    text = "The from address does not match a verified Sender Identity."
    provider.fail(status=403, message=text)
    return f"Check DEFAULT_FROM_EMAIL. Sending from orders@unverified.test failed with: 403 {text}"


def _webhook_key(settings: Any, provider: Sandbox) -> str:
    _, settings.SENDGRID_WEBHOOK_VERIFICATION_KEY = make_key()
    return "Check SENDGRID_WEBHOOK_VERIFICATION_KEY: it must be the key of this webhook"


def _webhook_url(settings: Any, provider: Sandbox) -> str:
    url = f"http://127.0.0.1:{free_port()}/webhooks"
    provider.webhooks.settings = WebhookSettings(url=url)
    return "Check the webhook's URL at sendgrid: no post has come since the e-mail was sent."


WRONG = (_no_api_key, _api_key, _api_url, _sender, _webhook_key, _webhook_url)


class TestAWrongSettingIsNamed:
    @pytest.fixture(params=["usual", "open", "paused", "suppressed"])
    def _delivery(self, request, provider, valkey_url):
        """Let the breaker be open, or the delivery paused, or the address suppressed."""
        drain.reset()
        if request.param == "open":
            assert drain.gate().force("sendgrid", "open", reason="by ann")
            assert drain.gate().enter().provider == ""
        elif request.param == "paused":
            pauses.pause(parts=["delivery"], reason="a sale", by=Actor("ann"))
        elif request.param == "suppressed":
            suppress([SuppressionReason(ANN, Suppression.Reason.MANUAL)])

    @pytest.mark.usefixtures("_delivery")
    @pytest.mark.parametrize("wrong", WRONG)
    def test_on_the_page_whether_or_not_emails_leave(self, settings, provider, monkeypatch, wrong):
        words = wrong(settings, provider)
        if wrong is _webhook_key:
            monkeypatch.setattr(provider_tests, "WAIT_SECONDS", 3.0)
        elif wrong is _webhook_url:
            monkeypatch.setattr(provider_tests, "WAIT_SECONDS", 0.0)
        said = shown_by_the_page()
        assert words in said and "to be corrected" in said and "settings of sendgrid work" not in said

    @pytest.mark.usefixtures("_delivery")
    def test_and_a_right_one_is_proved_meanwhile(self, provider):
        assert "The settings of sendgrid work." in shown_by_the_page() and len(provider.mails) == 1

    @pytest.mark.parametrize("name", ["sendgrid", "resend", "postmark", "mailgun"])
    def test_api_key(self, provider, settings, name):
        declared = declarations()[name]
        settings.EMAIL_PROVIDERS = [name]
        (key,) = (setting.anymail for setting in declared.settings if setting.name == declared.api_key)
        settings.ANYMAIL = settings.ANYMAIL | {key: "wrong"}
        assert re.search(rf"Check {declared.api_key}\. Sending from \S+ failed with: 401 ", tried(name))

    def test_no_api_key(self, settings, provider):
        settings.ANYMAIL = settings.ANYMAIL | {"SENDGRID_API_KEY": ""}
        assert "Set SENDGRID_API_KEY, which is empty." in tried() and not provider.mails

    @pytest.mark.parametrize("url", ["http://127.0.0.1:{port}/v3/", "{sandbox}/v4/", "{sandbox}/"])
    def test_api_url(self, settings, provider, url):
        url = url.format(port=free_port(), sandbox=provider.url)
        settings.ANYMAIL = settings.ANYMAIL | {"SENDGRID_API_URL": url}
        assert re.search(r"Check SENDGRID_API_URL\. Sending from \S+ failed with: ", tried())

    @pytest.mark.parametrize("by", [tried, shown_by_the_page])
    @pytest.mark.parametrize(
        ("failure", "words"),
        [
            ({"status": 200, "message": "Welcome"}, "failed with: 200 Welcome"),  # of another server
            ({"status": 202, "message": "Welcome"}, "a server answered, but without an id"),
            ({"kind": "reset"}, "failed with: ConnectionError "),
        ],
    )
    def test_api_url_with_an_unclear_answer(self, provider, impatient, failure, words, by):
        provider.fail(**failure)
        said = by()
        assert "Check SENDGRID_API_URL" in said and words in said
        assert ProviderTest.objects.get().accepted is None

    def test_an_unclear_answer_and_an_event_about_the_email_prove_the_settings(self, provider, monkeypatch):
        real = provider_tests.find_result

        def report(test: ProviderTest) -> Any:
            provider_tests.record_events(provider="sendgrid", facts=[Evidence(test.id, kind="delivered")])
            test.refresh_from_db()
            return real(test)

        provider.fail(kind="reset")
        monkeypatch.setattr(command, "find_result", report)
        assert "sendgrid may have the e-mail. " in (said := tried()) and "settings of sendgrid work" in said

    def test_sender(self, settings, provider):
        settings.DEFAULT_FROM_EMAIL = "Shop <orders@unverified.test>"
        provider.fail(status=403, message=f"The from address is not verified. {ANN} gets nothing.")
        said = tried()
        assert "Check DEFAULT_FROM_EMAIL. Sending from orders@unverified.test failed with: 403" in said
        assert ANN not in said

    def test_webhook_key(self, settings, impatient):
        _, settings.SENDGRID_WEBHOOK_VERIFICATION_KEY = make_key()
        said = tried()
        assert "sendgrid accepted" in said
        assert "Check SENDGRID_WEBHOOK_VERIFICATION_KEY: it must be the key of this webhook" in said
        assert "refused a post as unsigned since the e-mail was sent." in said

    def test_no_webhook_key(self, settings):
        settings.SENDGRID_WEBHOOK_VERIFICATION_KEY = ""
        assert "Set SENDGRID_WEBHOOK_VERIFICATION_KEY. The e-mail was sent" in tried()

    def test_webhook_url(self, provider, monkeypatch):
        provider.webhooks.settings = None
        monkeypatch.setattr(provider_tests, "WAIT_SECONDS", 0.0)
        said = tried()
        assert "Check the webhook's URL at sendgrid: no post has come since the e-mail was sent." in said
        assert "/webhooks/sendgrid" in said

    @pytest.mark.parametrize("kind", ["webhook:sendgrid", "refused:unsigned:sendgrid"])
    def test_a_post_of_long_before_the_email_says_nothing(self, provider, monkeypatch, kind):
        monkeypatch.setattr(provider_tests, "WAIT_SECONDS", 0.0)
        provider.webhooks.settings = None
        Heartbeat.beat(name=kind)
        Heartbeat.objects.update(beat_at=Now() - dt.timedelta(seconds=provider_tests.BEAT_SECONDS + 1))
        assert "no post has come since the e-mail was sent" in tried()

    def test_events_that_the_webhook_does_not_post(self, provider, settings, monkeypatch):
        """A post about another e-mail shows that the URL is right."""
        settings.WEBHOOKS_UNSIGNED, settings.SENDGRID_WEBHOOK_VERIFICATION_KEY = True, ""
        provider.webhooks.settings = None
        monkeypatch.setattr(provider_tests, "WAIT_SECONDS", 0.0)
        real = PROVIDERS["sendgrid"].send

        def send(mail: EmailNotification) -> Any:
            outcome = real(mail)
            post([event("no-id", "delivered")])
            return outcome

        monkeypatch.setattr(PROVIDERS["sendgrid"], "send", send)
        assert "Check the events of the webhook at sendgrid." in tried()

    @pytest.mark.parametrize("by", [tried, shown_by_the_page])
    def test_providers(self, settings, provider, by):
        settings.EMAIL_PROVIDERS = ["resend", "smtp"]
        said = by()
        assert "Add sendgrid to EMAIL_PROVIDERS, which is resend,smtp." in said and not provider.mails

    def test_arguments(self):
        assert "Unknown provider sendgird. Use sendgrid, ses, " in tried("sendgird")
        assert "Use an e-mail address like" in tried(to="ann") and not ProviderTest.objects.exists()
        assert "Use an address that exists." in tried(to=ERASED_ADDRESS)


def test_an_address_that_bounces_is_said_and_not_suppressed(provider):
    provider.webhooks.settings = dataclasses.replace(provider.webhooks.settings, recipients={"ann": "bounce"})
    assert "The webhook works, but says that the e-mail was bounced." in tried()
    assert not Suppression.objects.exists()


def test_a_delivery_that_is_reported_late_has_proved_the_webhook(provider, impatient):
    provider.webhooks.settings = dataclasses.replace(provider.webhooks.settings, events=("processed",))
    assert "The webhook works. No delivery was reported within 3 s. The settings of" in tried()


@pytest.mark.parametrize("by", [tried, shown_by_the_page])
def test_a_provider_without_events_is_proved_by_its_answer(settings, smtp, by):
    settings.EMAIL_PROVIDERS = ["smtp"]
    assert "smtp posts no events. Look for the e-mail" in by("smtp")


def test_a_webhook_is_waited_for_a_minute(provider):
    provider.webhooks.settings = None
    test = provider_tests.send_test(provider="sendgrid", to=ANN)
    for seconds, is_final in ((0, False), (55, False), (61, True)):
        ProviderTest.objects.update(sent_at=Now() - dt.timedelta(seconds=seconds))
        test.refresh_from_db()
        assert provider_tests.find_result(test).is_final is is_final


class TestTheWebhook:
    @pytest.fixture(autouse=True)
    def _unsigned(self, settings, provider):
        settings.WEBHOOKS_UNSIGNED, settings.SENDGRID_WEBHOOK_VERIFICATION_KEY = True, ""
        provider.webhooks.settings = None

    def reported(self, *kinds: str) -> str:
        """Return what a test's row says after these posts."""
        test = provider_tests.send_test(provider="sendgrid", to=ANN)
        for kind in kinds:
            assert post([event(str(test.id), kind)]).status_code == 200
        test.refresh_from_db()
        return test.reported

    def test_keeps_the_last_word_in_any_order_and_however_often(self):
        assert self.reported("processed") == "queued"
        assert self.reported("processed", "delivered", "delivered", "processed") == "delivered"
        assert self.reported("delivered", "spamreport", "open") == "complained"

    def test_finds_a_test_whose_provider_has_not_answered_yet(self, monkeypatch):
        real = PROVIDERS["sendgrid"].send

        def send(mail: EmailNotification) -> Any:
            post([event(str(mail.id), "delivered")])
            return real(mail)

        monkeypatch.setattr(PROVIDERS["sendgrid"], "send", send)
        test = provider_tests.send_test(provider="sendgrid", to=ANN)
        test.refresh_from_db()
        assert (test.accepted, test.reported) == (True, "delivered")

    def test_counts_no_event_of_a_test_as_unmatched(self):
        self.reported("processed", "delivered")
        assert count_unmatched() == {}

    def test_tells_a_test_nothing_about_another_provider(self, settings):
        settings.EMAIL_PROVIDERS = ["sendgrid", "resend"]
        test = provider_tests.send_test(provider="resend", to=ANN)
        post([event(str(test.id), "delivered")])
        test.refresh_from_db()
        assert test.reported == ""

    def test_does_not_look_for_a_test_if_an_email_has_the_id(self):
        mail = make_mail(status=Status.SENT, provider="sendgrid")
        with CaptureQueriesContext(connection) as queries:
            post([event(mail, "delivered")])
        assert "provider_tests" not in str(queries.captured_queries)
