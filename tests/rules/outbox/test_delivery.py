"""From a due row to a provider and back, through anymail's real backend and the sandbox's real HTTP."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import threading

import pytest
from django.db import connection
from django.db.models.functions import Now

from local.sandbox import Sandbox
from notifications.delivery import process
from notifications.delivery.process import SHORT_PAUSE_SECONDS
from tests.kit.mails import due_now, let_others_through, make_mail, make_mails, statuses
from tests.kit.waiting import until
from tests.kit.words import (
    PROVIDERS,
    EmailNotification,
    Heartbeat,
    Outcome,
    Status,
    Verdict,
    formatted_address,
    give_up,
    message_id,
    resend,
)
from tests.kit.words import drain as delivery
from tests.rules.outbox.test_slots import Clock, recorded

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def sandbox(settings, valkey_url):
    """Replace the provider; forget what this process has sent."""
    with Sandbox() as sandbox:
        settings.ANYMAIL = settings.ANYMAIL | {
            "SENDGRID_API_URL": sandbox.api_url,
            "REQUESTS_TIMEOUT": (1, 1),
        }
        process.start_anew()
        PROVIDERS["sendgrid"].close()
        yield sandbox
        PROVIDERS["sendgrid"].close()
    process.start_anew()


def test_a_mail_arrives_with_its_ids_both_parts_and_a_stable_message_id(sandbox):
    mail = make_mail(to_name='Ali "the" Baba, Jr.', subject="Grüße")
    delivery.drain_emails()
    (received,) = sandbox.mails
    stored = EmailNotification.objects.get()
    assert stored.status == Status.SENT and stored.provider == "sendgrid"
    assert stored.provider_message_id == received.message_id
    assert received.custom_args["notification_id"] == str(mail.id)
    assert received.custom_args["order_id"] == str(mail.order_id)
    assert received.custom_args["event_type"] == "order.paid"
    assert received.subject == "Grüße"
    assert "Paid." in received.text and "<p>Paid.</p>" in received.html
    payload = json.loads(received.raw)
    (personalization,) = payload["personalizations"]
    assert personalization["to"] == [{"email": "alice@example.com", "name": 'Ali "the" Baba, Jr.'}]
    assert message_id(mail.id) in (personalization.get("headers") or payload["headers"]).values()


def test_one_refused_recipient_dead_letters_at_once_and_one_down_forever_after_all_retries(sandbox, settings):
    sandbox.fail(kind="status", status=400, to="refused@")
    sandbox.fail(kind="status", status=503, to="down@")
    refused = make_mail(recipient_email="refused@example.com")
    down = make_mail(recipient_email="down@example.com", max_retries=3)
    delivery.drain_emails()
    assert EmailNotification.objects.get(id=refused.id).status == Status.DEAD_LETTERED
    tries = 1
    while EmailNotification.objects.get(id=down.id).status == Status.FAILED:
        let_others_through()
        delivery.drain_emails()
        tries += 1
        assert tries < 10
    assert EmailNotification.objects.get(id=down.id).status == Status.DEAD_LETTERED
    assert sandbox.mailbox.counts()[str(down.id)] == (4, 0)
    assert sandbox.mailbox.counts()[str(refused.id)] == (1, 0)

    sandbox.heal()
    changes, refusals = resend(ids=[refused.id, down.id])
    assert (len(changes), refusals) == (2, [])
    delivery.drain_emails()
    assert statuses() == {"sent": 2}
    assert len(EmailNotification.objects.get(id=down.id).errors) == 4


@pytest.mark.parametrize(
    ("fault", "status", "retries", "code"),
    [
        ({"kind": "status", "status": 500}, "failed", 0, "500"),
        ({"kind": "status", "status": 413}, "dead_lettered", 0, "413"),
        ({"kind": "status", "status": 401}, "pending", 0, "401"),
        ({"kind": "status", "status": 404}, "pending", 0, "404"),
        ({"kind": "status", "status": 429, "headers": {"Retry-After": "7"}}, "pending", 0, "429"),
        ({"kind": "hang", "seconds": 3}, "failed", 0, "ReadTimeout"),
        ({"kind": "reset"}, "failed", 0, "ConnectionError"),
        ({"kind": "accept_then_reset"}, "failed", 0, "ConnectionError"),
    ],
)
def test_each_kind_of_answer_leads_to_its_state(sandbox, fault, status, retries, code):
    sandbox.fail(**fault)
    make_mail()
    delivery.drain_emails()
    row = EmailNotification.objects.get()
    assert (row.status, row.retry_count) == (status, retries)
    assert row.last_error.startswith(code)


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        ({"kind": "hang", "seconds": 3}, Verdict.AMBIGUOUS),
        ({"kind": "accept_then_reset"}, Verdict.AMBIGUOUS),
        ({"kind": "status", "status": 504}, Verdict.AMBIGUOUS),
        ({"kind": "status", "status": 503}, Verdict.TRANSIENT),
    ],
)
def test_what_may_have_been_accepted_is_held_and_what_was_not_is_only_delayed(
    sandbox, settings, fault, verdict
):
    settings.RETRY_BACKOFF_BASE = 1
    sandbox.fail(**fault)
    make_mail()
    delivery.drain_emails()
    row = EmailNotification.objects.get()
    wait = (row.next_attempt_at - row.updated_at).total_seconds()
    assert row.errors[0]["outcome"] == verdict
    assert (wait > 100) is (verdict is Verdict.AMBIGUOUS)


def test_throttling_keeps_every_process_away_until_the_provider_said(sandbox, settings):
    settings.EMAIL_CONCURRENCY = 1
    sandbox.fail(kind="status", status=429, headers={"Retry-After": "7"}, times=1)
    make_mails(5)
    delivery.drain_emails()
    assert statuses() == {"pending": 5}
    assert sandbox.stats()["requests"] == 1
    process.start_anew()  # another process, as it were
    due_now()
    done = delivery.drain_emails()
    assert done is not None and done.claimed == 0 and 0 < done.pause_seconds <= 7
    assert sandbox.stats()["requests"] == 1


def test_threads_keep_their_connections_open(sandbox, settings):
    settings.EMAIL_CONCURRENCY = 3
    make_mails(60)
    delivery.drain_emails()
    assert statuses() == {"sent": 60}
    assert sandbox.stats()["connections"] <= 3


def test_a_message_that_cannot_be_made_is_the_mails_own_fault(sandbox):
    make_mail(recipient_email="nobody")
    delivery.drain_emails()
    row = EmailNotification.objects.get()
    assert (row.status, row.errors[0]["outcome"]) == (Status.DEAD_LETTERED, "permanent")
    assert sandbox.mails == []


def test_the_poll_recovers_expired_claims_and_leaves_its_mark(sandbox):
    old = make_mail(status=Status.PROCESSING, claimed_at=Now() - dt.timedelta(seconds=301))
    delivery.poll()
    assert EmailNotification.objects.get(id=old.id).retry_count == 1
    age = Heartbeat.read_age(name=delivery.POLL)
    assert age is not None and age < 30


def test_a_due_mail_that_another_session_locks_is_asked_for_again_after_a_pause(sandbox):
    mail = make_mail()
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT FROM email_notifications WHERE id = %s FOR UPDATE", [mail.id])
            done = delivery.drain_due()
    finally:
        other.close()
    assert done is not None
    assert (done.claimed, done.next_due_seconds) == (0, SHORT_PAUSE_SECONDS)


def test_a_stopping_process_starts_no_drain(sandbox):
    make_mail()
    delivery.stop()
    assert delivery.drain_emails() is None
    assert statuses() == {"pending": 1}


def test_no_provider_is_asked_once_the_process_stops(sandbox):
    mail = make_mail()
    mail.should_stop = lambda: True
    assert process.current().send(mail).verdict is Verdict.RETURNED
    assert sandbox.stats()["requests"] == 0


def test_an_e_mail_that_waits_for_its_slot_is_given_back_at_a_stop(sandbox, settings):
    settings.EMAIL_RATE_LIMIT = 1.0
    process.start_anew()
    here = process.current()
    assert here.gate.enter().provider  # the next slot is due a second later
    threading.Thread(target=delivery.stop).start()
    assert here.send(make_mail()).verdict is Verdict.RETURNED
    assert sandbox.stats()["requests"] == 0


def test_a_send_asks_the_provider_when_its_slot_is_due(sandbox, settings, monkeypatch):
    settings.EMAIL_RATE_LIMIT = 50.0
    here, mail = process.Drain(), make_mail()
    here.gate._shared.burst = 1.0
    clock = Clock(itertools.cycle([0.0, -0.001, 0.2, 0.01]))  # some waits end late, one of them far too late
    here.gate._clock = here.gate._slots._clock = clock
    monkeypatch.setattr(here.stopping, "wait", clock.wait)
    slots, asked = recorded(here.gate, monkeypatch), []

    def ask(_):
        asked.append((slots[-1].due_at, clock()))
        return Outcome(Verdict.ACCEPTED, "sendgrid", "m")

    monkeypatch.setattr(PROVIDERS["sendgrid"], "send", ask)
    for _ in range(40):
        assert here.send(mail).verdict is Verdict.ACCEPTED
    assert len(asked) == 40 < len(slots)
    assert not [(due, at) for due, at in asked if not due <= at <= due + 0.1]


def test_a_send_that_a_stop_broke_off_is_no_failure_of_the_provider(sandbox, monkeypatch):
    here, mail = process.current(), make_mail()
    monkeypatch.setattr(PROVIDERS["sendgrid"], "send", lambda _: Outcome(Verdict.RETURNED))
    monkeypatch.setattr(here.neighbours, "record", lambda **_: pytest.fail("recorded"))
    for _ in range(here.gate.rules.threshold):
        assert here.send(mail).verdict is Verdict.RETURNED
    assert here.gate.read_providers()[0].breaker.failed == ()


def test_the_end_of_a_process_waits_for_the_drain_of_another_thread(sandbox):
    make_mail()
    sandbox.latency_seconds = 0.3

    def drain() -> None:
        try:
            delivery.drain_emails()
        finally:
            connection.close()

    timer = threading.Thread(target=drain)
    timer.start()
    until(lambda: sandbox.stats()["requests"])
    delivery.stop()
    delivery.finish()
    assert statuses() == {"sent": 1}
    timer.join()


def test_giving_up_makes_a_dead_letter_discarded():
    row = make_mail(status=Status.DEAD_LETTERED)
    changes, _ = give_up(ids=[row.id])
    assert [change.status for change in changes] == ["discarded"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("", "a@example.com"),
        ("Ann", "Ann <a@example.com>"),
        ("Ann\r\nBcc: all@example.com", '"Ann Bcc: all@example.com" <a@example.com>'),
        ("\x00\x1b", "a@example.com"),
    ],
)
def test_a_name_cannot_break_out_of_its_header(name, shown):
    assert formatted_address(name=name, recipient_email="a@example.com") == shown


def test_no_log_line_shows_the_providers_key_whatever_fails(sandbox, settings, caplog, monkeypatch):
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
        delivery.poll()
        sandbox.heal()
    errors = str(list(EmailNotification.objects.values_list("errors", "last_error")))
    assert "provider did not take a mail" in caplog.text and "401" in errors
    assert "very-secret" not in caplog.text + errors
