"""Two providers: a refused e-mail goes to the next one at once, and one in doubt after its hold."""

from __future__ import annotations

import datetime as dt
import json
import time

import pytest
from django.db.models.functions import Now
from django.test import Client

from notifications.states.errors import time_of
from tests.kit.breakers import HOUR, let_an_hour_pass
from tests.kit.mails import claim_one, drained, due_now, make_claimed, make_mail, make_mails, statuses
from tests.kit.providers import provider, set_timeouts
from tests.kit.waiting import until
from tests.kit.words import (
    PROVIDERS,
    BreakerState,
    EmailNotification,
    Heartbeat,
    Outcome,
    Status,
    Verdict,
    drain,
    give_up,
    recover,
    resend,
    settle,
)

__all__ = ["provider"]
pytestmark = pytest.mark.django_db(transaction=True)
HOLD = 120
#: Those in flight, and those that took a freed slot before the fifth failure opened the breaker.
ASKED = 5 + 32
#: How often a doubtful attempt asks a provider. One with keys is asked a second time at once.
ASKED_ONCE = {"sendgrid": 1, "resend": 2}


@pytest.fixture
def two(provider, settings, valkey_url, monkeypatch):
    """SendGrid, then Resend; a process that has sent nothing before."""
    monkeypatch.setattr(drain, "UNTRIED_SECONDS", HOUR)
    settings.EMAIL_RATE_LIMIT = 0
    settings.AMBIGUOUS_HOLD_SECONDS = HOLD
    settings.WEBHOOKS_UNSIGNED = True
    configure(settings, "sendgrid", "resend")
    return provider


def configure(settings, *providers: str, open_seconds: float = HOUR) -> None:
    """Restart the process with other providers and other times of an open breaker.

    By default no probe becomes due during a test, however slow the machine is.
    """
    settings.EMAIL_PROVIDERS, settings.BREAKER_OPEN_SECONDS = list(providers), open_seconds
    drain.reset()


def let_the_hold_pass() -> None:
    """Date all attempts back by the hold, and make all e-mails due."""
    for mail in EmailNotification.objects.exclude(errors=[]):
        for entry in mail.errors:
            entry["at"] = (time_of(entry) - dt.timedelta(seconds=HOLD)).isoformat()
        mail.save(update_fields=["errors"])
    due_now()


def asked(two) -> dict[str, int]:
    return {name: count for name, count in two.stats()["requests_by_provider"].items() if count}


def accepted(two) -> set[int]:
    """Return how often a provider took an e-mail."""
    return {taken for _, taken in two.mailbox.counts().values()}


def report(mail: EmailNotification, kind: str = "processed") -> None:
    """Post an event of SendGrid about an e-mail."""
    event = {"event": kind, "timestamp": int(time.time()), "sg_message_id": "m1"}
    body = json.dumps([event | {"notification_id": str(mail.id), "email": mail.recipient_email}])
    assert Client().post("/webhooks/sendgrid", body, "application/json").status_code == 200


class TestARefusal:
    @pytest.mark.parametrize("status", [503, 429, 401])
    def test_sends_an_email_to_the_second_at_once_and_none_to_both(self, two, status):
        two.fail(kind="status", status=status, provider="sendgrid")
        make_mails(100)
        assert drained() == {"sent": 100} and accepted(two) == {1}
        assert {mail.provider for mail in two.mails} == {"resend"}
        assert asked(two)["sendgrid"] <= ASKED

    @pytest.mark.parametrize("first", [503, 429])
    def test_does_not_wait_for_the_pause_of_the_second(self, two, first):
        """The first may take it much earlier."""
        two.fail(kind="status", status=first, provider="sendgrid", headers={"Retry-After": "2"}, times=1)
        two.fail(kind="status", status=429, provider="resend", headers={"Retry-After": "3600"})
        make_mails(2)
        drained()
        waits = [
            (mail.next_attempt_at - mail.updated_at).total_seconds()
            for mail in EmailNotification.objects.exclude(status="sent")
        ]
        assert waits and max(waits) <= 30

    def test_for_good_is_not_shown_to_the_second(self, two):
        two.fail(kind="status", status=400, provider="sendgrid")
        make_mail()
        assert drained() == {"dead_lettered": 1} and asked(two) == {"sendgrid": 1}

    def test_is_forgotten_when_a_probe_has_succeeded(self, two, valkey_url):
        two.fail(kind="status", status=503, provider="sendgrid")
        make_mails(10)
        drained()
        two.heal()
        state = {view.provider: view.state for view in drain.gate().read_providers()}
        assert state == {"sendgrid": BreakerState.OPEN, "resend": BreakerState.CLOSED}
        let_an_hour_pass(valkey_url, drain.gate())
        make_mails(10)
        assert drained() == {"sent": 20}
        assert drain.gate().read_providers()[0].state is BreakerState.CLOSED and asked(two)["sendgrid"] > 5

    def test_by_all_leaves_rows_due_and_nobody_is_asked(self, two):
        two.fail(kind="status", status=503)
        make_mails(100)
        drained()
        before = asked(two)
        assert sum(before.values()) <= 2 * ASKED
        for _ in range(20):
            assert drained().keys() <= {"pending", "failed"}
        assert asked(two) == before

    def test_that_opened_the_breaker_is_followed_by_a_probe_of_another(self, two, settings):
        settings.RETRY_DELAYS = [60.0]
        configure(settings, "sendgrid")
        two.fail(kind="status", status=503)
        make_mails(6)
        drained()
        tried = set(EmailNotification.objects.exclude(errors=[]).values_list("id", flat=True))
        assert len(tried) >= 5
        assert not EmailNotification.objects.due().filter(id__in=tried).exists()

    def test_of_an_email_while_no_other_gets_through_makes_no_dead_letter(self, two, settings):
        configure(settings, "sendgrid")
        two.fail(kind="status", status=503)
        make_mail(max_retries=1)
        for _ in range(4):
            due_now()
            drained()
        row = EmailNotification.objects.get()
        assert (row.status, row.retry_count, len(row.errors)) == (Status.FAILED, 4, 4)


class TestADoubt:
    def test_opens_the_breaker_and_only_the_emails_in_doubt_wait(self, two):
        two.fail(kind="status", status=504, provider="sendgrid")
        make_mails(100)
        drained()
        held = EmailNotification.objects.filter(status=Status.FAILED)
        assert 5 <= held.count() <= ASKED and held.count() == asked(two)["sendgrid"]
        assert statuses()["sent"] == 100 - held.count()
        assert not held.filter(next_attempt_at__lt=Now() + dt.timedelta(seconds=HOLD - 20)).exists()
        assert drain.gate().read_providers()[0].state is BreakerState.OPEN
        let_the_hold_pass()
        assert drained() == {"sent": 100} and accepted(two) == {1}

    def test_is_no_probe_after_its_hold_while_another_provider_works(self, two, valkey_url):
        two.fail(kind="status", status=504, provider="sendgrid")
        make_mails(20)
        drained()
        before = asked(two)["sendgrid"]
        let_the_hold_pass()
        let_an_hour_pass(valkey_url, drain.gate())  # so that a probe is due
        assert drained() == {"sent": 20} and asked(two)["sendgrid"] == before

    def test_is_held_also_with_the_breaker_closed_and_each_provider_has_its_turn(self, two, settings):
        configure(settings, "sendgrid", "postmark", "resend")
        for name in ("sendgrid", "postmark"):
            two.fail(kind="status", status=504, provider=name)
        make_mail()
        drained()
        due_now()
        assert drained() == {"failed": 1} and asked(two) == {"sendgrid": 1}, "it is held"
        for _ in range(2):
            let_the_hold_pass()
            drained()
        assert statuses() == {"sent": 1} and asked(two) == {"sendgrid": 1, "postmark": 1, "resend": 1}

    def test_ends_with_a_webhook_within_the_hold(self, two):
        two.fail(kind="accept_then_status", status=504, provider="sendgrid")
        mail = make_mail()
        drained()
        report(mail)
        let_the_hold_pass()
        assert drained() == {"sent": 1} and asked(two) == {"sendgrid": 1}
        assert EmailNotification.objects.get().provider == "sendgrid"

    def test_does_not_come_back_with_a_webhook_after_the_hold(self, two):
        two.fail(kind="accept_then_status", status=504, provider="sendgrid")
        mail = make_mail()
        drained()
        let_the_hold_pass()
        drained()
        sent = EmailNotification.objects.get()
        assert (sent.status, sent.provider) == (Status.SENT, "resend")
        report(mail, "delivered")
        row = EmailNotification.objects.get()
        assert (row.status, row.provider, row.sent_at) == (Status.SENT, "resend", sent.sent_at)
        assert row.delivered_at and accepted(two) == {2}  # the one duplicate that the guarantee allows

    def test_is_also_an_answer_that_comes_after_its_time_out(self, two, settings):
        """Such a connection is given up by us. Without a webhook, the e-mail leaves again after its hold."""
        configure(settings, "sendgrid")
        set_timeouts(settings, seconds=1)
        two.fail(kind="accept_then_hang", seconds=3600, times=1)
        make_mail()
        assert drained() == {"failed": 1}
        set_timeouts(settings, seconds=30)
        let_the_hold_pass()
        assert drained() == {"sent": 1} and accepted(two) == {2}
        (error,) = EmailNotification.objects.get().errors
        assert (error["outcome"], error["code"]) == ("ambiguous", "ReadTimeout")

    @pytest.mark.parametrize("removed", ["sendgrid", "resend"])
    def test_keeps_its_hold_when_the_provider_is_removed(self, two, settings, removed):
        left = "resend" if removed == "sendgrid" else "sendgrid"
        configure(settings, removed, left)
        two.fail(kind="status", status=504, provider=removed)
        make_mail()
        drained()
        configure(settings, left)
        due_now()
        assert drained() == {"failed": 1} and asked(two) == {removed: ASKED_ONCE[removed]}
        let_the_hold_pass()
        assert drained() == {"sent": 1} and asked(two) == {removed: ASKED_ONCE[removed], left: 1}

    @pytest.mark.parametrize("providers", [["sendgrid"], ["sendgrid", "resend"]])
    def test_makes_no_dead_letter_however_long_the_outage(self, two, settings, providers):
        configure(settings, *providers, open_seconds=0.01)
        two.fail(kind="status", status=504)
        make_mails(10)
        for _ in range(12):
            drained()
            let_the_hold_pass()
            time.sleep(0.02)  # until the next test of an open breaker is due
        assert sum(asked(two).values()) > 10
        assert statuses().keys() <= {"pending", "failed"}
        two.heal()
        until(lambda: drained() == {"sent": 10}, "all are sent", meanwhile=let_the_hold_pass)
        assert statuses() == {"sent": 10} and accepted(two) == {1}

    def test_goes_to_the_next_provider_also_if_it_was_given_back_after_its_hold(self, two):
        two.fail(kind="status", status=504, provider="sendgrid")
        make_mail()
        drained()
        let_the_hold_pass()
        row = claim_one()  # by a worker that stops
        settle([(row, Outcome(Verdict.RETURNED))])
        assert drained() == {"sent": 1} and asked(two) == {"sendgrid": 1, "resend": 1}

    @pytest.mark.parametrize("providers", [["sendgrid", "resend"], ["resend", "sendgrid"]])
    def test_lets_a_person_resend_or_give_up_only_after_the_hold(self, two, settings, providers):
        configure(settings, *providers)
        times = ASKED_ONCE[providers[0]]
        two.fail(kind="status", status=504, times=times)
        mail = make_mail()
        drained()
        for action in (resend, give_up):
            changes, (refusal,) = action(ids=[mail.id])
            assert changes == [] and "held" in refusal.reason
        let_the_hold_pass()
        changes, _ = resend(ids=[mail.id])
        assert len(changes) == 1
        assert drained() == {"sent": 1}
        assert asked(two) == {providers[0]: times + 1}, "a new round starts with the first"


class TestAProviderWithKeys:
    """It knows an e-mail again by its key, so it is asked a second time in the same attempt."""

    @pytest.mark.parametrize("second", [401, 429, 503, 504, 400])
    def test_proves_something_about_the_first_request_only_by_an_acceptance(self, two, settings, second):
        configure(settings, "resend", "sendgrid")
        two.fail(kind="status", status=504, provider="resend", times=1)
        two.fail(kind="status", status=second, provider="resend", headers={"Retry-After": "3600"})
        make_mail()
        drained()
        row = EmailNotification.objects.get()
        assert asked(two) == {"resend": 2}
        assert [(error["outcome"], error["code"]) for error in row.errors] == [("ambiguous", "504")]
        assert (row.next_attempt_at - row.updated_at).total_seconds() == pytest.approx(HOLD, abs=0.1)
        due_now()
        assert drained() == {"failed": 1} and asked(two) == {"resend": 2}, "it is held"
        let_the_hold_pass()
        assert drained() == {"sent": 1} and asked(two) == {"resend": 2, "sendgrid": 1}

    @pytest.mark.parametrize(
        "fault", [{"kind": "accept_then_status", "status": 504}, {"kind": "accept_then_reset"}]
    )
    def test_gets_a_second_request_and_sends_no_second_email(self, two, settings, fault):
        configure(settings, "resend", "sendgrid")
        two.fail(provider="resend", times=1, **fault)
        make_mail()
        assert drained() == {"sent": 1} and asked(two) == {"resend": 2} and len(two.mails) == 1
        assert EmailNotification.objects.get().errors == []

    def test_gets_a_second_request_within_the_rate_limit(self, two, settings, monkeypatch):
        configure(settings, "resend")
        gate, entries = drain.gate(), []
        enter = gate.enter
        monkeypatch.setattr(gate, "enter", lambda **options: entries.append(options) or enter(**options))
        two.fail(kind="status", status=504, provider="resend")
        assert drain.current().send(make_claimed()).verdict is Verdict.AMBIGUOUS
        assert len(entries) == 2 and asked(two) == {"resend": 2}

    def test_gets_none_when_the_lease_is_too_short_for_it(self, two, settings, monkeypatch):
        configure(settings, "resend")
        email, real = make_claimed(), PROVIDERS["resend"].send

        def ask(email, **options):
            email.deadline_at = time.monotonic()
            return real(email, **options)

        two.fail(kind="status", status=504, provider="resend")
        monkeypatch.setattr(PROVIDERS["resend"], "send", ask)
        assert drain.current().send(email).verdict is Verdict.AMBIGUOUS and asked(two) == {"resend": 1}


class TestAnExpiredLease:
    """A lost worker's attempt names no provider."""

    @pytest.mark.parametrize("providers", [["sendgrid"], ["resend", "sendgrid"]])
    def test_is_held_then_any_provider_may_have_it(self, two, settings, providers):
        configure(settings, *providers)
        # `provider` is of an earlier attempt. The lost worker may have asked another one.
        make_mail(status="processing", claimed_at=Now() - dt.timedelta(hours=1), provider=providers[0])
        recover(lease_seconds=300)
        due_now()
        assert drained() == {"failed": 1} and asked(two) == {}
        let_the_hold_pass()
        assert drained() == {"sent": 1} and asked(two) == {providers[0]: 1}


class TestTheHold:
    """A send that may have been accepted waits for evidence, while that can come."""

    @staticmethod
    def entry(outcome: str, *, ago: float, provider: str = "sendgrid") -> dict[str, str]:
        at = (dt.datetime.now(dt.UTC) - dt.timedelta(seconds=ago)).isoformat()
        return {"at": at, "outcome": outcome, "provider": provider, "code": "", "text": ""}

    def doubtful(self, *, ago: float = 200, **fields) -> EmailNotification:
        errors = [self.entry("ambiguous", ago=ago)]
        mail = make_mail(**{"status": Status.FAILED, "retry_count": 1, "errors": errors} | fields)
        due_now()
        return mail

    def endpoint(self, *, up_for: float | None) -> None:
        """Record that events arrived before, and that the endpoint is up for so long, or down."""
        Heartbeat.objects.create(name="webhook:sendgrid", beat_at=Now() - dt.timedelta(days=1))
        if up_for is None:
            Heartbeat.objects.create(name="web", beat_at=Now() - dt.timedelta(seconds=60))
        else:
            Heartbeat.objects.create(name="web", since=Now() - dt.timedelta(seconds=up_for))

    def test_runs_out_when_the_endpoint_was_up_all_the_time(self, two):
        self.endpoint(up_for=500)
        self.doubtful()
        assert drained() == {"sent": 1}

    @pytest.mark.parametrize(("up_for", "waits"), [(None, 120), (20, 100)])
    def test_does_not_run_while_the_endpoint_was_down_and_holds_nothing_else_back(self, two, up_for, waits):
        self.endpoint(up_for=up_for)
        held = self.doubtful()
        make_mail()
        assert drained() == {"failed": 1, "sent": 1}
        row = EmailNotification.objects.get(id=held.id)
        assert (row.retry_count, len(row.errors)) == (1, 1)
        assert (row.next_attempt_at - row.updated_at).total_seconds() == pytest.approx(waits, abs=2)

    def test_is_only_a_delay_where_no_webhooks_ever_arrive(self, two):
        self.doubtful()
        assert drained() == {"sent": 1}

    def test_ends_after_a_day_whatever_happens(self, two):
        self.endpoint(up_for=None)
        self.doubtful(ago=86_500)
        assert drained() == {"sent": 1}

    @pytest.mark.parametrize("doubted", ["sendgrid", "resend"])
    def test_does_not_end_with_a_clean_refusal_after_a_doubt_at_any_provider(self, two, doubted):
        doubt = self.entry("ambiguous", ago=60, provider=doubted)
        self.doubtful(errors=[doubt, self.entry("transient", ago=30, provider="resend")])
        row = claim_one()
        outcome = drain.current().screen([row])[row.id]
        assert outcome.verdict is Verdict.HELD and 50 < outcome.wait_seconds < 65

    def test_ends_with_a_resend(self, two):
        self.doubtful(ago=60, resent_at=Now() - dt.timedelta(seconds=30))
        assert drain.current().screen([claim_one()]) == {}
