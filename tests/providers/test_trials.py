"""`manage.py providers try` against the sandbox: a wrong setting is named, and nothing else is stored."""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from local.machine import free_port
from local.sandbox import Sandbox, WebhookSettings
from notifications import trials
from tests.kit.jobs import run_jobs
from tests.kit.mails import make_mail
from tests.kit.races import together
from tests.kit.waiting import replace_time
from tests.kit.webhooks import event, post
from tests.kit.words import (
    BulkJob,
    EmailNotification,
    Heartbeat,
    Status,
    Suppression,
    declarations,
    job_times,
    make_key,
    person_jobs,
    run_batch,
)

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])
ANN = "ann@example.com"


@pytest.fixture(autouse=True)
def _keys(settings, provider: Sandbox, live_server, monkeypatch):
    """Let the sandbox post signed events of SendGrid to this process, and look for them often."""
    signs, settings.SENDGRID_WEBHOOK_VERIFICATION_KEY = make_key()
    settings.EMAIL_PROVIDERS = ["sendgrid"]
    settings.ALLOWED_HOSTS = ["*"]
    url = f"{live_server.url}/webhooks"
    provider.webhooks.settings = WebhookSettings(url=url, keys={"sendgrid": signs}, delay=0.01)
    monkeypatch.setattr(trials, "LOOK_SECONDS", 0.05)
    Heartbeat._beat_at.clear()


@pytest.fixture
def impatient(monkeypatch) -> None:
    """Wait for a webhook only as long as a busy machine needs for one."""
    monkeypatch.setattr(trials, "WAIT_SECONDS", 3.0)


def tried(name: str = "sendgrid", *, to: str = ANN) -> str:
    """Return what the command prints, with its error."""
    out = io.StringIO()
    try:
        call_command("providers", "try", name, to=to, stdout=out)
    except CommandError as error:
        out.write(f"{error} [{error.returncode}]")
    assert not EmailNotification.objects.exists()
    assert not BulkJob.objects.filter(address__gt="").exists()
    assert ANN not in str(list(BulkJob.objects.values_list("steps", "error", "filter")))
    return out.getvalue()


def test_a_right_setting_is_proved_by_the_events_of_one_real_email(provider):
    said = tried()
    for words in (
        "Send the e-mail of order.paid from",
        "sendgrid accepted",
        "says: delivered",
        "settings of sendgrid work",
    ):
        assert words in said
    (mail,) = provider.mails
    job = BulkJob.objects.get()
    assert mail.recipients == (ANN,) and mail.subject.startswith("[Trial] ")
    assert mail.custom_args["notification_id"] == str(job.id)
    assert (job.state, job.error) == ("done", "")


@pytest.mark.parametrize("name", ["postmark", "mailgun"])
def test_each_provider_whose_events_the_sandbox_plays_is_proved(provider, settings, name):
    declared = declarations()[name]
    settings.EMAIL_PROVIDERS = [name]
    assert declared.make_key
    signs, verifies = declared.make_key()
    provider.webhooks.settings = dataclasses.replace(provider.webhooks.settings, keys={name: signs})
    setattr(settings, declared.webhook_key, verifies)
    assert f"settings of {name} work" in tried(name)


class TestAWrongSettingIsNamed:
    @pytest.mark.parametrize("name", ["sendgrid", "resend", "postmark", "mailgun"])
    def test_api_key(self, provider, settings, name):
        declared = declarations()[name]
        settings.EMAIL_PROVIDERS = [name]
        (key,) = (setting.anymail for setting in declared.settings if setting.name == declared.api_key)
        settings.ANYMAIL = settings.ANYMAIL | {key: "wrong"}
        assert f"Check {declared.api_key}. Sending failed with: 401 " in tried(name)

    def test_no_api_key(self, settings, provider):
        settings.ANYMAIL = settings.ANYMAIL | {"SENDGRID_API_KEY": ""}
        assert "Set SENDGRID_API_KEY, which is empty." in tried() and not provider.mails

    @pytest.mark.parametrize("url", ["http://127.0.0.1:{port}/v3/", "{sandbox}/v4/", "{sandbox}/"])
    def test_api_url(self, settings, provider, url):
        url = url.format(port=free_port(), sandbox=provider.url)
        settings.ANYMAIL = settings.ANYMAIL | {"SENDGRID_API_URL": url}
        assert "Check SENDGRID_API_URL. Sending failed with: " in tried()

    def test_api_url_of_another_server(self, provider, impatient):
        provider.fail(status=200, message="Welcome")
        assert "Check SENDGRID_API_URL. Sending failed with: 200 Welcome" in tried()

    def test_api_url_of_a_server_that_accepts_everything(self, provider, impatient):
        provider.fail(status=202, message="Welcome")
        assert "Check SENDGRID_API_URL: a server answered, but without an id" in tried()

    def test_api_url_of_a_server_that_never_answers(self, provider, impatient):
        provider.fail(kind="reset")
        assert "Check SENDGRID_API_URL. Sending failed with: ConnectionError " in tried()

    def test_sender(self, settings, provider):
        settings.DEFAULT_FROM_EMAIL = "Shop <orders@unverified.test>"
        text = "The from address does not match a verified Sender Identity."
        provider.fail(status=403, message=text)
        said = tried()
        assert f"Check DEFAULT_FROM_EMAIL. Sending failed with: 403 {text}"[:-1] in said
        assert "from orders@unverified.test through sendgrid" in said

    def test_webhook_key(self, settings, impatient):
        _, settings.SENDGRID_WEBHOOK_VERIFICATION_KEY = make_key()
        said = tried()
        assert "sendgrid accepted" in said
        assert "Check SENDGRID_WEBHOOK_VERIFICATION_KEY: it must be the key of this webhook" in said

    def test_no_webhook_key(self, settings):
        settings.SENDGRID_WEBHOOK_VERIFICATION_KEY = ""
        assert "Set SENDGRID_WEBHOOK_VERIFICATION_KEY. The e-mail was sent" in tried()

    @pytest.mark.parametrize("is_set", [True, False])
    def test_webhook_url(self, provider, impatient, is_set):
        url = f"http://127.0.0.1:{free_port()}/webhooks"
        provider.webhooks.settings = WebhookSettings(url=url) if is_set else None
        said = tried()
        assert "Check the webhook's URL at sendgrid: no post came within 3 s." in said
        assert "/webhooks/sendgrid" in said

    def test_events_that_the_webhook_does_not_post(self, provider, settings, impatient, monkeypatch):
        """A post about another e-mail shows that the URL is right."""
        settings.WEBHOOKS_UNSIGNED, settings.SENDGRID_WEBHOOK_VERIFICATION_KEY = True, ""
        provider.webhooks.settings = None
        real = trials._Trial.send

        def send(self: Any, sample: Any) -> Any:
            outcome = real(self, sample)
            post([event("no-id", "delivered")])
            return outcome

        monkeypatch.setattr(trials._Trial, "send", send)
        assert "Check the events of the webhook at sendgrid." in tried()

    def test_events_also_if_the_reads_of_the_heartbeats_are_slow(self, provider, impatient, monkeypatch):
        """A heartbeat right after the send must not look older than the e-mail."""
        provider.webhooks.settings = None
        monkeypatch.setattr(trials, "BEAT_SECONDS", 0.0)
        real_send = trials._Trial.send
        real_age: Callable[..., float | None] = Heartbeat.read_age

        def send(self: Any, sample: Any) -> Any:
            outcome = real_send(self, sample)
            Heartbeat.beat(name="webhook:sendgrid")
            return outcome

        def read_age(*, name: str) -> float | None:
            time.sleep(0.2)
            return real_age(name=name)

        monkeypatch.setattr(trials._Trial, "send", send)
        monkeypatch.setattr(Heartbeat, "read_age", read_age)
        assert "Check the events of the webhook at sendgrid." in tried()

    def test_providers(self, settings, provider):
        settings.EMAIL_PROVIDERS = ["resend", "smtp"]
        said = tried()
        assert "Add sendgrid to EMAIL_PROVIDERS, which is resend,smtp." in said and not provider.mails

    def test_arguments(self):
        assert "Unknown provider sendgird. Use sendgrid, ses, " in tried("sendgird")
        assert "Use an e-mail address like" in tried(to="ann") and not BulkJob.objects.exists()


class TestTheJob:
    def start(self, **arguments: Any) -> BulkJob:
        return trials.start_trial(**{"provider": "sendgrid", "to": ANN} | arguments)

    def run(self, job: BulkJob) -> BulkJob:
        run_jobs()
        return BulkJob.objects.get(id=job.id)

    def test_sends_no_second_email_after_its_worker_was_killed(self, provider, settings, monkeypatch, fast):
        fast.jobs()
        job = self.start()

        def kill(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(trials._Trial, "wait", kill)
            run_jobs()
        job = self.run(job)
        assert job.state == "done" and len(provider.mails) == 1
        kinds = [step["kind"] for step in job.steps]
        assert {"sending", "resumed", "event:delivered"} <= set(kinds) and kinds.count("sending") == 1

    def test_whose_send_takes_long_is_not_taken_over_as_killed(self, settings, smtp, monkeypatch):
        settings.EMAIL_PROVIDERS = ["smtp"]
        provider = trials.PROVIDERS["smtp"]
        send = provider.send

        def send_slowly(mail: EmailNotification) -> Any:
            BulkJob.objects.update(updated_at=F("updated_at") - dt.timedelta(seconds=20))
            assert together(1, lambda _: run_batch()) == [False]
            return send(mail)

        monkeypatch.setattr(provider, "send", send_slowly)
        job = self.run(self.start(provider="smtp"))
        assert (job.state, job.error) == ("done", "")
        assert [step["kind"] for step in job.steps] == ["sending", "accepted", "unproved"]

    def test_that_found_no_worker_for_long_sends_nothing(self, provider):
        job = self.start()
        BulkJob.objects.update(created_at=Now() - trials.TOO_LATE)
        job = self.run(job)
        assert job.state == "stopped" and "Start another trial." in job.error and not provider.mails

    def test_stops_when_somebody_stops_it(self, provider, monkeypatch):
        provider.webhooks.settings = None
        job = self.start()
        replace_time(monkeypatch, trials, sleep=lambda _: BulkJob.objects.stop(id=job.id, error="enough"))
        assert self.run(job).error == "enough"

    def test_of_an_address_that_bounces_says_so_and_suppresses_nothing(self, provider):
        provider.webhooks.settings = dataclasses.replace(
            provider.webhooks.settings, recipients={"ann": "bounce"}
        )
        said = tried()
        assert "The webhook works, but says that the e-mail was bounced." in said
        assert not Suppression.objects.exists()

    def test_whose_delivery_is_reported_late_has_proved_the_webhook(self, provider, impatient):
        provider.webhooks.settings = dataclasses.replace(provider.webhooks.settings, events=("processed",))
        assert "The webhook works. No delivery was reported within 3 s." in tried()

    def test_of_a_provider_without_events_ends_when_it_accepts(self, settings, smtp):
        settings.EMAIL_PROVIDERS = ["smtp"]
        assert "smtp posts no events. Look for the e-mail" in tried("smtp")


class TestTheWebhook:
    @pytest.fixture(autouse=True)
    def _unsigned(self, settings):
        settings.WEBHOOKS_UNSIGNED, settings.SENDGRID_WEBHOOK_VERIFICATION_KEY = True, ""

    def test_also_keeps_events_after_the_end_but_not_without_limit(self, caplog):
        job = trials.start_trial(provider="sendgrid", to=ANN)
        BulkJob.objects.stop(id=job.id)
        for _ in range(job_times.STEPS_LIMIT + 5):
            assert post([event(str(job.id), "spamreport")]).status_code == 200
        job.refresh_from_db()
        assert [step["kind"] for step in job.steps] == ["event:complained"] * job_times.STEPS_LIMIT

    def test_tells_a_trial_nothing_about_another_provider_or_another_job(self, settings):
        settings.EMAIL_PROVIDERS = ["sendgrid", "resend"]
        job = trials.start_trial(provider="resend", to=ANN)
        erasure = person_jobs.start_erasure(email=ANN, force=False)
        post([event(str(job.id), "delivered") for job in (job, erasure)])
        assert list(BulkJob.objects.order_by("id").values_list("steps", flat=True)) == [[], None]

    def test_does_not_look_for_a_trial_if_an_email_has_the_id(self):
        mail = make_mail(status=Status.SENT, provider="sendgrid")
        with CaptureQueriesContext(connection) as queries:
            post([event(mail, "delivered")])
        assert "bulk_jobs" not in str(queries.captured_queries)
