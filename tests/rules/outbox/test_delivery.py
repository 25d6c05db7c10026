"""From a due row to a provider and back, over the sandbox's real HTTP, and when the next drain starts."""

from __future__ import annotations

import base64
import datetime as dt
import json
import threading
import time
from importlib.util import find_spec, module_from_spec

import pytest
from celery import current_app
from django.db import connection
from django.db.models.functions import Now

from notifications import wake
from notifications.wake import Reason
from outbox.claim import claim
from tests.kit.mails import (
    accept_others,
    drained,
    due_now,
    make_claimed,
    make_mail,
    make_mails,
    sandbox,
    statuses,
)
from tests.kit.providers import set_timeouts
from tests.kit.waiting import until
from tests.kit.words import (
    PROVIDERS,
    REGISTRY,
    DrainResult,
    EmailNotification,
    Heartbeat,
    Outcome,
    Status,
    Verdict,
    drain,
    make_client,
    resend,
    settle,
    tasks,
)

__all__ = ["sandbox"]
pytestmark = pytest.mark.django_db(transaction=True)


def test_an_accepted_mail_is_sent_and_keeps_the_providers_id(sandbox):
    make_mail(subject="Grüße")
    assert drained() == {"sent": 1}
    (received,) = sandbox.mails
    stored = EmailNotification.objects.get()
    assert (stored.provider, stored.provider_message_id) == ("sendgrid", received.message_id)
    assert received.subject == "Grüße"


def test_one_refused_recipient_dead_letters_at_once_and_one_down_forever_after_all_retries(sandbox):
    sandbox.fail(kind="status", status=400, to="refused@")
    sandbox.fail(kind="status", status=503, to="down@")
    refused = make_mail(recipient_email="refused@example.com")
    down = make_mail(recipient_email="down@example.com", max_retries=3)
    assert drained() == {"dead_lettered": 1, "failed": 1}
    time.sleep(0.2)
    accept_others(100, ago=0.1)
    for _ in range(3):
        due_now()
        drained()
    assert statuses() == {"dead_lettered": 2, "sent": 100}
    assert sandbox.mailbox.counts() == {str(down.id): (4, 0), str(refused.id): (1, 0)}
    row = EmailNotification.objects.get(id=down.id)
    assert (row.retry_count, len(row.errors), row.last_error[:3]) == (4, 4, "503")

    sandbox.heal()
    changes, refusals = resend(ids=[refused.id, down.id])
    assert (len(changes), refusals) == (2, [])
    assert drained() == {"sent": 102}


@pytest.mark.parametrize(
    ("fault", "status", "code", "is_held"),
    [
        ({"kind": "status", "status": 503}, "failed", "503", False),
        ({"kind": "status", "status": 504}, "failed", "504", True),
        ({"kind": "status", "status": 413}, "dead_lettered", "413", False),
        ({"kind": "status", "status": 401}, "pending", "401", False),
        ({"kind": "status", "status": 429, "headers": {"Retry-After": "7"}}, "pending", "429", False),
        ({"kind": "hang", "seconds": 3600}, "failed", "ReadTimeout", True),
        ({"kind": "accept_then_reset"}, "failed", "ConnectionError", True),
    ],
)
def test_each_kind_of_answer_leads_to_its_state(sandbox, settings, fault, status, code, is_held):
    settings.RETRY_BACKOFF_BASE = 1
    if fault["kind"] == "hang":
        set_timeouts(settings, seconds=1)
    sandbox.fail(**fault)
    make_mail()
    drained()
    row = EmailNotification.objects.get()
    assert (row.status, row.retry_count) == (status, int(status == "failed"))
    assert row.last_error.startswith(code)
    assert ((row.next_attempt_at - row.updated_at).total_seconds() > 100) is is_held


def test_throttling_keeps_every_process_away_until_the_provider_said(sandbox, settings):
    settings.EMAIL_CONCURRENCY = 1
    sandbox.fail(kind="status", status=429, headers={"Retry-After": "3600"}, times=1)
    make_mails(5)
    assert drained() == {"pending": 5}
    assert sandbox.stats()["requests"] == 1
    drain.reset()  # another process, as it were
    due_now()
    done = drain.drain_emails()
    assert done is not None and done.claimed == 0 and 0 < done.pause_seconds <= 3600
    assert sandbox.stats()["requests"] == 1


def test_threads_keep_their_connections_open(sandbox, settings):
    settings.EMAIL_CONCURRENCY = 3
    make_mails(60)
    assert drained() == {"sent": 60}
    assert sandbox.stats()["connections"] <= 3


def test_a_message_that_cannot_be_made_is_the_mails_own_fault(sandbox):
    make_mail(recipient_email="nobody")
    assert drained() == {"dead_lettered": 1}
    assert EmailNotification.objects.get().errors[0]["outcome"] == "permanent"
    assert sandbox.mails == []


def test_no_log_line_shows_the_providers_key_whatever_fails(sandbox, settings, caplog):
    settings.ANYMAIL = settings.ANYMAIL | {"SENDGRID_API_KEY": "SG.very-secret.key-of-the-shop"}
    PROVIDERS["sendgrid"].close()
    caplog.set_level("DEBUG")
    for fault in (
        {"kind": "status", "status": 401},
        {"kind": "status", "status": 500},
        {"kind": "reset"},
        {"kind": "refuse", "seconds": 1},
    ):
        sandbox.fail(**fault)
        make_mail()
        drain.poll()
        sandbox.heal()
    errors = str(list(EmailNotification.objects.values_list("errors", "last_error")))
    assert "provider did not take a mail" in caplog.text and "401" in errors
    assert "very-secret" not in caplog.text + errors


class TestAStop:
    def test_starts_no_drain(self, sandbox):
        make_mail()
        drain.stop()
        assert drain.drain_emails() is None
        assert statuses() == {"pending": 1}

    def test_lets_no_provider_be_asked(self, sandbox):
        email = make_claimed()
        drain.stop()
        assert drain.current().send(email).verdict is Verdict.RETURNED
        assert sandbox.stats()["requests"] == 0

    def test_gives_back_an_email_that_waits_for_its_slot(self, sandbox, settings):
        settings.EMAIL_RATE_LIMIT = 0.25
        drain.reset()
        here, email = drain.current(), make_claimed()
        assert here.gate.enter().provider  # the next slot is due four seconds later
        threading.Thread(target=drain.stop).start()
        assert here.send(email).verdict is Verdict.RETURNED
        assert sandbox.stats()["requests"] == 0

    def test_that_broke_a_send_off_is_no_failure_of_the_provider(self, sandbox, monkeypatch):
        here, email = drain.current(), make_claimed()

        def send(email, *, account, may_continue):
            assert may_continue()
            here.stopping.set()
            assert not may_continue()
            return Outcome(Verdict.RETURNED)

        monkeypatch.setattr(PROVIDERS["sendgrid"], "send", send)
        for _ in range(here.gate.rules.threshold):
            here.stopping.clear()
            assert here.send(email).verdict is Verdict.RETURNED
        assert here.gate.read_providers()[0].breaker.failed == ()

    def test_waits_for_the_drain_of_another_thread(self, sandbox):
        make_mail()
        sandbox.latency_seconds = 0.3

        def send() -> None:
            try:
                drain.drain_emails()
            finally:
                connection.close()

        timer = threading.Thread(target=send)
        timer.start()
        until(lambda: sandbox.stats()["requests"])
        drain.finish()
        assert statuses() == {"sent": 1}
        timer.join()


class TestThePoll:
    def test_recovers_expired_claims_and_leaves_its_mark(self, sandbox):
        old = make_mail(status=Status.PROCESSING, claimed_at=Now() - dt.timedelta(seconds=301))
        drain.poll()
        assert EmailNotification.objects.get(id=old.id).retry_count == 1
        age = Heartbeat.read_age(name=drain.POLL)
        assert age is not None and age < 30

    def test_leaves_no_mark_next_to_a_stuck_drain(self, sandbox, settings):
        settings.POLL_INTERVAL = 0.2
        drain.drain_emails()
        with drain.current().running:
            time.sleep(0.3)
            drain.poll()
        assert Heartbeat.read_age(name=drain.POLL) is None


def first_claims(reason: str) -> float:
    name = "orderpost_trigger_delay_seconds_count"
    return REGISTRY.get_sample_value(name, {"reason": reason}) or 0.0


class TestTheDelayOfATrigger:
    def test_is_counted_at_the_first_claim_only_under_the_reason_of_the_drain(self, sandbox):
        before = {reason: first_claims(reason) for reason in Reason}
        make_mails(2)
        sandbox.fail(kind="status", status=503, times=1)
        tasks.drain_emails(reason="cdc")
        due_now()
        drain.poll()
        make_mail()
        tasks.drain_emails()
        counted = {reason: first_claims(reason) - before[reason] for reason in Reason}
        assert {reason: count for reason, count in counted.items() if count} == {"cdc": 2, "unknown": 1}

    def test_does_not_count_a_row_again_that_was_given_back(self):
        make_mail()
        (row,) = claim(limit=1)
        assert row.stored_seconds is not None and 0 <= row.stored_seconds < 60
        settle([(row, drain.NOT_TRIED)])
        (again,) = claim(limit=1)
        assert again.stored_seconds is None and again.age_seconds > row.age_seconds

    def test_has_the_first_reason_since_the_last_claim(self):
        current = drain.current()
        current.wake(Reason.RESEND)
        current.wake(Reason.CDC)
        assert current.reason == "resend"
        current.woken.clear()
        current.wake(Reason("of a later release"))
        assert current.reason == "unknown"


@pytest.mark.parametrize("reason", Reason)
def test_without_the_fast_path_the_shops_own_commits_wake_nobody(settings, monkeypatch, reason):
    woken: list[str] = []
    monkeypatch.setattr(wake.waker, "wake", woken.append)
    for settings.FAST_PATH in (True, False):
        wake.wake(reason)
    assert len(woken) == (1 if reason in ("fast_path", "resend") else 2)


class TestTheNextDrain:
    @pytest.fixture
    def waits(self, settings, monkeypatch) -> list[float]:
        """Return the list of the times that the timer will be set to, in seconds from now."""
        settings.FAST_PATH = True
        seconds: list[float] = []
        monkeypatch.setattr(tasks.timer, "wake", lambda *, in_seconds: seconds.append(in_seconds))
        return seconds

    def test_starts_when_the_breaker_lets_something_through(self, sandbox, waits):
        drain.gate().force("sendgrid", "open", reason="test")
        make_mail()
        tasks.drain_emails()
        assert waits and all(0 < seconds <= 30 for seconds in waits)

    def test_waits_for_a_provider_although_emails_are_due(self, waits, monkeypatch):
        done = DrainResult(pause_seconds=25.0, next_due_seconds=0.0)
        monkeypatch.setattr(drain, "drain_emails", lambda _: done)
        tasks.drain_emails()
        assert waits == [25.0]

    def test_starts_when_the_first_row_is_due_that_others_left_waiting(self, sandbox, waits):
        make_mail(next_attempt_at=Now() + dt.timedelta(seconds=700))
        tasks.poll_outbox()
        (seconds,) = waits
        assert 500 < seconds <= 700

    def test_is_left_to_the_poll_without_the_fast_path(self, sandbox, waits, settings):
        settings.FAST_PATH = False
        make_mail(next_attempt_at=Now() + dt.timedelta(seconds=7))
        tasks.poll_outbox()
        assert waits == []

    def test_starts_after_a_pause_if_another_session_locks_a_due_mail(self, sandbox):
        mail = make_mail()
        other = connection.copy()
        try:
            with other.cursor() as cursor:
                cursor.execute("BEGIN")
                cursor.execute("SELECT FROM email_notifications WHERE id = %s FOR UPDATE", [mail.id])
                done = drain.drain_due()
        finally:
            other.close()
        assert done is not None
        assert (done.claimed, done.next_due_seconds) == (0, drain.SHORT_PAUSE_SECONDS)


def test_wake_ups_do_not_pile_up_while_no_worker_takes_them(valkey_url, settings):
    settings.REDIS_URL = valkey_url

    def sent() -> float:
        labels = {"target": "drain", "result": "sent"}
        return REGISTRY.get_sample_value("orderpost_wakeups_total", labels) or 0.0

    def wake() -> int:
        """Wake a worker. Return how many wake-ups wait for one."""
        before = sent()
        waking.wake(waking.Reason.CDC)
        until(lambda: sent() > before, "the wake-up is sent")
        return int(client.llen(queue))

    queue = current_app.conf.task_default_queue
    # As in a new process, because another test may have led this one's client to a Redis that is away.
    spec = find_spec("notifications.wake")
    waking = module_from_spec(spec)
    spec.loader.exec_module(waking)
    with make_client() as client:
        assert [wake(), wake()] == [1, 2]
        message = json.loads(client.lindex(queue, 0))
        _, words, _ = json.loads(base64.b64decode(message["body"]))
        assert words == {"reason": "cdc"}
        client.rpush(queue, *["a wake-up"] * (waking.MOST_WAITING - 3))
        assert [wake(), wake()] == [waking.MOST_WAITING] * 2
        client.delete(queue)
        assert wake() == 1
