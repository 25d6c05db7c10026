"""Whose failure it was: the e-mail's own if first attempts of others were accepted right after it."""

from __future__ import annotations

import datetime as dt
import random
import time
from collections.abc import Sequence

import pytest
from django.db.models.functions import Now

from outbox import first_attempts as module
from outbox.first_attempts import ENOUGH_IF_QUIET, QUIET_SECONDS
from tests.kit.mails import accept_after, claim_one, due_now, let_others_through, make_mail
from tests.kit.words import (
    ENOUGH,
    LEASE_EXPIRED,
    Claimed,
    FirstAttempts,
    Outcome,
    Status,
    Verdict,
    claim,
    drain,
)

FAILED_AT = 10_000.0
LATER = FAILED_AT + 3600.0


@pytest.fixture
def seen() -> FirstAttempts:
    return FirstAttempts()


def attempts(
    seen: FirstAttempts, *, accepted: int = 0, failed: int = 0, at: float, provider: str = "p"
) -> None:
    for number in range(accepted + failed):
        seen.record(provider=provider, is_accepted=number < accepted, ended_at=at)


def own(seen: FirstAttempts, *, at: Sequence[float] = (FAILED_AT,), now: float = LATER) -> int:
    return seen.count_own_failures(provider="p", at=at, now=now)


def test_failures_are_the_emails_own_when_others_were_accepted_after_each(seen):
    for at in (FAILED_AT + 20, FAILED_AT + 43):
        attempts(seen, accepted=ENOUGH, at=at)
    assert own(seen, at=[FAILED_AT, FAILED_AT + 40]) == 2


def test_fewer_acceptances_prove_nothing_until_a_minute_shows_that_the_shop_is_quiet(seen):
    attempts(seen, accepted=ENOUGH - 1, at=FAILED_AT + 3)
    assert own(seen, now=FAILED_AT + QUIET_SECONDS) == 0
    assert own(seen, now=FAILED_AT + QUIET_SECONDS + 1) == 1


@pytest.mark.parametrize("last_at", [QUIET_SECONDS, QUIET_SECONDS + 1])
def test_in_a_quiet_shop_a_few_are_enough_although_a_later_one_failed(seen, last_at):
    attempts(seen, accepted=ENOUGH_IF_QUIET, at=FAILED_AT + 3)
    attempts(seen, failed=1, accepted=ENOUGH - ENOUGH_IF_QUIET - 1, at=FAILED_AT + last_at)
    assert own(seen) == (last_at > QUIET_SECONDS)


def test_in_a_quiet_shop_fewer_than_a_few_prove_nothing(seen):
    attempts(seen, accepted=ENOUGH_IF_QUIET - 1, at=FAILED_AT + 3)
    assert own(seen) == 0
    attempts(seen, accepted=1, at=FAILED_AT + 400)
    assert own(seen) == 1


def test_one_other_that_failed_after_it_takes_the_blame_from_the_email(seen):
    attempts(seen, accepted=ENOUGH, at=FAILED_AT + 5)
    attempts(seen, failed=1, at=FAILED_AT + 3)
    assert own(seen) == 0


def test_what_happened_before_proves_nothing(seen):
    attempts(seen, accepted=500, failed=1, at=FAILED_AT - 3)
    assert own(seen) == 0
    attempts(seen, accepted=ENOUGH, at=FAILED_AT + 3)
    assert own(seen) == 1


def test_failures_before_the_same_acceptances_are_one(seen):
    attempts(seen, accepted=2 * ENOUGH - 1, at=FAILED_AT + 30)
    assert own(seen, at=[FAILED_AT, FAILED_AT + 5, FAILED_AT + 10, FAILED_AT + 20]) == 1


def test_acceptances_of_another_provider_prove_nothing(seen):
    attempts(seen, accepted=50, at=FAILED_AT + 3, provider="q")
    assert own(seen) == 0


@pytest.mark.parametrize("share", [0.2, 0.35, 0.5, 1.0])
@pytest.mark.parametrize("moment", [1.0, 30.0, 59.0])
def test_in_a_brown_out_few_failures_are_the_emails_own(seen, share, moment):
    chance = random.Random(7)
    for tick in range(-2400, 2400):  # 20 a second, bad from FAILED_AT for a minute
        at = FAILED_AT + tick / 20
        bad = FAILED_AT <= at < FAILED_AT + 60 and chance.random() < share
        attempts(seen, accepted=not bad, failed=bad, at=at)
    assert own(seen, at=[FAILED_AT + moment * part / 4 for part in range(1, 5)]) <= 1


def test_it_forgets_the_oldest_of_many(seen, monkeypatch):
    monkeypatch.setattr(module, "MOST", 100)
    for number in range(1000):
        attempts(seen, accepted=1, at=FAILED_AT + number)
    now = FAILED_AT + 1000
    assert len(seen._ended["p"]) <= 100
    assert own(seen, at=[FAILED_AT + 980], now=now) == 1


@pytest.mark.django_db
class TestBeforeASend:
    @pytest.fixture(autouse=True)
    def here(self, valkey_url):
        return drain.current()

    @staticmethod
    def entry(
        *, ago: float, judged: bool | None = False, outcome: str = "transient", code: str = "503"
    ) -> dict:
        at = (dt.datetime.now(dt.UTC) - dt.timedelta(seconds=ago)).isoformat()
        entry = {"at": at, "provider": "sendgrid", "outcome": outcome, "code": code, "text": code}
        return entry if judged is None else entry | {"judged": judged}

    def failed(self, *, attempts: int = 2, **fields) -> Claimed:
        """Claim an e-mail that failed alone, by default twice."""
        errors = fields.pop("errors", [self.entry(ago=attempts - number) for number in range(attempts)])
        make_mail(status=Status.FAILED, errors=errors, **fields)
        let_others_through()
        return claim_one()

    def test_failures_that_acceptances_follow_use_up_a_retry_each(self, here):
        row = self.failed()
        assert here.screen([row]) == {} and row.retry_count == 2

    def test_a_failure_that_few_acceptances_follow_uses_up_no_retry(self, here):
        make_mail(status=Status.FAILED, errors=[self.entry(ago=100)])
        accept_after(ago=100, count=ENOUGH_IF_QUIET - 1)
        due_now()
        row = claim_one()
        assert here.screen([row]) == {} and row.retry_count == 0

    def test_past_the_last_retry_it_is_a_dead_letter_without_another_send(self, here):
        row = self.failed(attempts=4, max_retries=3)
        assert here.screen([row]) == {row.id: Outcome(Verdict.EXHAUSTED)}

    def test_a_lost_worker_counts_with_failures_that_are_the_mails_own(self, here, settings):
        settings.AMBIGUOUS_HOLD_SECONDS = 1
        lost = self.entry(ago=900, judged=None, outcome="ambiguous", code=LEASE_EXPIRED)
        errors = [lost, *(self.entry(ago=9 - number) for number in range(3))]
        row = self.failed(errors=errors, retry_count=1, max_retries=3)
        assert here.screen([row]) == {row.id: Outcome(Verdict.EXHAUSTED)}

    def test_eight_poisonous_mails_of_a_quiet_shop_are_dead_letters_within_ten_minutes(self, here):
        """With one good mail every 15 s."""
        times = [(600, 585, 540, 470, 400, 300, 190), (600, 590, 560, 480, 390, 320, 110)] * 4
        mails = [
            make_mail(
                status=Status.FAILED,
                errors=[self.entry(ago=ago) for ago in some],
                next_attempt_at=Now() - dt.timedelta(seconds=1),
            )
            for some in times
        ]
        now = time.monotonic()
        for _ in mails:
            here.first_attempts.record(provider="sendgrid", is_accepted=False, ended_at=now - 600)
        for ago in range(0, 595, 15):
            here.first_attempts.record(provider="sendgrid", is_accepted=True, ended_at=now - ago)
        outcomes = here.screen(claim(limit=20))
        assert outcomes == {mail.id: Outcome(Verdict.EXHAUSTED) for mail in mails}

    def test_a_row_that_was_given_back_is_not_judged_twice(self, here):
        for ago in (30, 10):
            accept_after(ago=ago)
        errors = [self.entry(ago=ago) for ago in (30, 10)]
        make_mail(status=Status.PENDING, errors=errors, retry_count=2)
        due_now()
        row = claim_one()
        assert here.screen([row]) == {} and row.retry_count == 2

    def test_after_a_restart_nothing_is_charged(self):
        row = self.failed()
        drain.reset()
        assert drain.current().screen([row]) == {} and row.retry_count == 0
