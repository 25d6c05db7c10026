"""Between claim and send: who is held, whose failure it was, and what a person is reminded of."""

from __future__ import annotations

import datetime as dt
import time

import pytest
from django.db.models.functions import Now

from notifications.delivery import process
from outbox.delivery.rows.outcomes import LEASE_EXPIRED
from tests.kit.mails import accept_around, due_now, let_others_through, make_mail
from tests.kit.words import (
    EACH_SIDE_IF_QUIET,
    EmailNotification,
    Heartbeat,
    Outcome,
    Status,
    Verdict,
    drain,
    new_id,
    tasks,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def here(settings, valkey_url):
    settings.EMAIL_PROVIDERS = ["sendgrid", "resend"]
    process.start_anew()
    yield process.current()
    process.start_anew()


def entry(outcome: str, *, provider: str = "sendgrid", ago: float = 1.0, judged: bool | None = None) -> dict:
    at = (dt.datetime.now(dt.UTC) - dt.timedelta(seconds=ago)).isoformat()
    found = {"at": at, "provider": provider, "outcome": outcome, "code": "503", "text": "503"}
    return found if judged is None else found | {"judged": judged}


def claimed(**fields) -> EmailNotification:
    make_mail(**fields)
    (row,) = EmailNotification.objects.claim(limit=1)
    return row


def failed(*, attempts: int = 2, **fields) -> EmailNotification:
    some = [entry("transient", ago=attempts - number, judged=False) for number in range(attempts)]
    errors = fields.pop("errors", some)
    make_mail(status=Status.FAILED, errors=errors, **fields)
    let_others_through()
    (row,) = EmailNotification.objects.claim(limit=1)
    return row


class TestJudgement:
    def test_failures_among_accepted_neighbours_use_up_a_retry_each(self, here):
        row = failed()
        assert here.screen([row]) == {} and (row.charge, row.retry_count) == (2, 2)

    def test_one_failure_among_few_neighbours_uses_up_no_retry(self, here):
        make_mail(status=Status.FAILED, errors=[entry("transient", ago=10, judged=False)])
        accept_around(ago=10, each_side=EACH_SIDE_IF_QUIET - 1)
        due_now()
        (row,) = EmailNotification.objects.claim(limit=1)
        assert here.screen([row]) == {} and row.charge == 0

    def test_past_the_last_retry_it_is_a_dead_letter_without_another_send(self, here):
        row = failed(attempts=4, max_retries=3)
        assert here.screen([row]) == {row.id: Outcome(Verdict.EXHAUSTED)} and row.charge == 3

    def test_a_lost_worker_counts_with_failures_that_are_the_mails_own(self, here, settings):
        settings.AMBIGUOUS_HOLD_SECONDS = 1
        lost = entry("ambiguous", ago=900) | {"code": LEASE_EXPIRED}
        errors = [lost, *(entry("transient", ago=9 - number, judged=False) for number in range(3))]
        row = failed(errors=errors, retry_count=1, max_retries=3)
        assert here.screen([row]) == {row.id: Outcome(Verdict.EXHAUSTED)}

    def test_eight_poisonous_mails_of_a_quiet_shop_are_dead_letters_within_ten_minutes(self, here):
        """With one good mail every 15 s. The eight failed first at once, so that one spoke for the other."""
        times = [(600, 585, 540, 470, 400, 300, 230), (600, 590, 560, 480, 390, 320, 110)] * 4
        mails = [
            make_mail(
                status=Status.FAILED,
                errors=[entry("transient", ago=ago, judged=False) for ago in some],
                next_attempt_at=Now() - dt.timedelta(seconds=1),
            )
            for some in times
        ]
        for mail in mails:
            here.neighbours.record(
                provider="sendgrid", id=mail.id, is_accepted=False, ended_at=time.monotonic() - 600
            )
        for ago in range(0, 595, 15):
            here.neighbours.record(
                provider="sendgrid", id=new_id(), is_accepted=True, ended_at=time.monotonic() - ago
            )
        outcomes = here.screen(EmailNotification.objects.claim(limit=20))
        assert outcomes == {mail.id: Outcome(Verdict.EXHAUSTED) for mail in mails}

    def test_a_failure_of_release_0_1_0_was_charged_by_it_and_is_not_judged_again(self, here):
        row = failed(errors=[entry("transient", ago=ago) for ago in (3, 2, 1)])
        assert here.screen([row]) == {} and row.charge == 0

    def test_a_row_that_was_given_back_is_not_judged_twice(self, here):
        errors = [entry("transient", ago=ago, judged=False) for ago in (30, 10)]
        for ago in (30, 10):
            accept_around(ago=ago)
        make_mail(status=Status.PENDING, errors=errors, retry_count=2)
        due_now()
        (row,) = EmailNotification.objects.claim(limit=1)
        assert here.screen([row]) == {} and row.charge == 0

    def test_after_a_restart_nothing_is_charged(self, here):
        row = failed()
        process.start_anew()
        assert process.current().screen([row]) == {} and row.charge == 0


class TestHold:
    def test_a_clean_refusal_after_a_doubt_does_not_end_the_hold(self, here):
        row = claimed(errors=[entry("ambiguous", ago=60), entry("transient", ago=30)], status=Status.FAILED)
        (outcome,) = here.screen([row]).values()
        assert outcome.verdict is Verdict.HELD and 50 < outcome.wait_seconds < 65

    def test_a_doubt_of_before_the_last_resend_holds_nothing(self, here):
        row = claimed(errors=[entry("ambiguous", ago=60)], resent_at=Now() - dt.timedelta(seconds=30))
        assert here.screen([row]) == {}

    @pytest.mark.parametrize("doubted", ["sendgrid", "resend"])
    def test_a_doubt_at_any_provider_holds(self, here, doubted):
        errors = [entry("ambiguous", provider=doubted, ago=60), entry("transient", provider="resend", ago=30)]
        (outcome,) = here.screen([claimed(errors=errors)]).values()
        assert outcome.verdict is Verdict.HELD


class TestFailing:
    def test_what_failed_for_an_hour_is_failing(self):
        old = make_mail(status=Status.FAILED, errors=[entry("transient")])
        make_mail(status=Status.FAILED, errors=[entry("transient")])  # for a moment only
        make_mail()
        EmailNotification.objects.filter(id=old.id).update(created_at=Now() - dt.timedelta(hours=2))
        assert EmailNotification.objects.failing().get().id == old.id


class TestDueMeansNow:
    def test_a_drain_has_the_next_one_start_when_its_failure_is_due(self, here, monkeypatch):
        asked = []
        monkeypatch.setattr(tasks.timer, "wake", lambda *, in_seconds: asked.append(in_seconds))
        here.gate.force("sendgrid", "open", reason="test")
        here.gate.force("resend", "open", reason="test")
        make_mail()
        tasks.drain_emails()
        assert asked and all(0 < seconds <= 30 for seconds in asked)

    def test_a_poll_knows_of_rows_that_others_left_waiting(self, here, monkeypatch):
        asked = []
        monkeypatch.setattr(tasks.timer, "wake", lambda *, in_seconds: asked.append(in_seconds))
        make_mail(next_attempt_at=Now() + dt.timedelta(seconds=7))
        tasks.poll_outbox()
        (seconds,) = asked
        assert 5 < seconds <= 7

    def test_without_the_fast_path_there_is_no_timer(self, here, settings, monkeypatch):
        settings.FAST_PATH = False
        monkeypatch.setattr(tasks.timer, "wake", lambda **_: pytest.fail("set"))
        make_mail(next_attempt_at=Now() + dt.timedelta(seconds=7))
        tasks.poll_outbox()


def test_a_poll_beside_a_stuck_drain_leaves_no_heartbeat(here, monkeypatch, settings):
    settings.POLL_INTERVAL = 0.2
    drain.drain_emails()
    with here.draining:
        time.sleep(0.3)
        drain.poll()
    assert Heartbeat.read_age(name=drain.POLL) is None


def test_what_a_provider_accepted_stays_accepted_when_its_event_cannot_be_written(
    here, settings, monkeypatch
):
    settings.EMAIL_EVENTS = True
    from django.db import connection

    row = claimed()
    with connection.cursor() as cursor:
        cursor.execute(
            "ALTER TABLE outbox_events ADD CONSTRAINT none_today CHECK (event_type = '') NOT VALID"
        )
    try:
        accepted = Outcome(Verdict.ACCEPTED, "sendgrid", str(new_id()))
        EmailNotification.objects.settle([(row, accepted)])
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE outbox_events DROP CONSTRAINT none_today")
    assert EmailNotification.objects.get().status == Status.SENT
