"""Whose failure it was: judged by what first attempts of others met around it, before the next send."""

from __future__ import annotations

import datetime as dt
import random
import time
from collections.abc import Sequence

import pytest
from django.db.models.functions import Now

from outbox.gate import neighbours
from outbox.gate.neighbours import EACH_SIDE_IF_QUIET, QUIET_SECONDS
from tests.kit.mails import accept_around, claim_one, due_now, let_others_through, make_mail
from tests.kit.words import (
    EACH_SIDE,
    LEASE_EXPIRED,
    Claimed,
    Neighbours,
    Outcome,
    Status,
    Verdict,
    claim,
    drain,
    new_id,
)

NOW = 10_000.0


@pytest.fixture
def seen() -> Neighbours:
    return Neighbours()


def attempts(seen: Neighbours, *, accepted: int = 0, failed: int = 0, at: float, provider: str = "p") -> None:
    for number in range(accepted + failed):
        seen.record(provider=provider, id=new_id(), is_accepted=number < accepted, ended_at=at)


def own(seen: Neighbours, *, id=None, at: Sequence[float] = (NOW,)) -> int:
    return seen.count_own_failures(provider="p", id=id or new_id(), at=at)


def test_failures_are_the_messages_own_when_others_were_accepted_around_them(seen):
    for at in (NOW - 3, NOW + 20, NOW + 43):
        attempts(seen, accepted=EACH_SIDE, at=at)
    assert own(seen, at=[NOW, NOW + 40]) == 2


@pytest.mark.parametrize(("each", "ago"), [(EACH_SIDE, 3), (EACH_SIDE_IF_QUIET, QUIET_SECONDS + 1)])
def test_a_quiet_shop_needs_fewer_neighbours(seen, each, ago):
    attempts(seen, accepted=EACH_SIDE, at=NOW - ago)
    attempts(seen, accepted=each - 1, at=NOW + 3)
    assert own(seen) == 0
    attempts(seen, accepted=1, at=NOW + 4)
    assert own(seen) == 1


@pytest.mark.parametrize("at", [NOW - 3, NOW + 3])
def test_one_neighbour_that_failed_takes_the_blame_from_the_message(seen, at):
    attempts(seen, accepted=EACH_SIDE, at=NOW - 5)
    attempts(seen, accepted=EACH_SIDE, at=NOW + 5)
    attempts(seen, failed=1, at=at)
    assert own(seen) == 0


def test_failures_among_the_same_neighbours_are_one(seen):
    attempts(seen, accepted=EACH_SIDE, at=NOW - 30)
    attempts(seen, accepted=2 * EACH_SIDE, at=NOW + 30)
    assert own(seen, at=[NOW, NOW + 5, NOW + 10, NOW + 20]) == 1


def test_neighbours_on_one_side_prove_nothing(seen):
    attempts(seen, accepted=500, at=NOW - 3)
    assert own(seen, at=[NOW, NOW + 40]) == 0
    assert own(seen, at=[NOW - 5]) == 0


def test_acceptances_of_another_provider_prove_nothing(seen):
    for at in (NOW - 3, NOW + 20, NOW + 43):
        attempts(seen, accepted=50, at=at, provider="q")
    assert own(seen, at=[NOW, NOW + 40]) == 0


def test_its_own_first_failure_does_not_speak_for_it(seen):
    id = new_id()
    seen.record(provider="p", id=id, is_accepted=False, ended_at=NOW)
    for at in (NOW - 3, NOW + 20, NOW + 43):
        attempts(seen, accepted=EACH_SIDE, at=at)
    assert own(seen, id=id, at=[NOW, NOW + 40]) == 2


@pytest.mark.parametrize("share", [0.2, 0.35, 0.5, 1.0])
@pytest.mark.parametrize("moment", [1.0, 30.0, 59.0])
def test_in_a_brown_out_few_failures_are_the_messages_own(seen, share, moment):
    chance = random.Random(7)
    for tick in range(-2400, 2400):  # 20 a second, bad from NOW to NOW + 60
        at = NOW + tick / 20
        bad = NOW <= at < NOW + 60 and chance.random() < share
        attempts(seen, accepted=not bad, failed=bad, at=at)
    assert own(seen, at=[NOW + moment * part / 4 for part in range(1, 5)]) <= 1


def test_it_forgets_the_oldest_of_many(seen, monkeypatch):
    monkeypatch.setattr(neighbours, "MOST", 100)
    for number in range(1000):
        attempts(seen, accepted=1, at=NOW + number)
    assert (own(seen, at=[NOW + 800]), own(seen, at=[NOW + 980])) == (0, 1)


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
        found = {"at": at, "provider": "sendgrid", "outcome": outcome, "code": code, "text": code}
        return found if judged is None else found | {"judged": judged}

    def failed(self, *, attempts: int = 2, **fields) -> Claimed:
        """Claim an e-mail that failed alone, by default twice."""
        errors = fields.pop("errors", [self.entry(ago=attempts - number) for number in range(attempts)])
        make_mail(status=Status.FAILED, errors=errors, **fields)
        let_others_through()
        return claim_one()

    def test_failures_among_accepted_neighbours_use_up_a_retry_each(self, here):
        row = self.failed()
        assert here.screen([row]) == {} and row.retry_count == 2

    def test_one_failure_among_few_neighbours_uses_up_no_retry(self, here):
        make_mail(status=Status.FAILED, errors=[self.entry(ago=10)])
        accept_around(ago=10, each_side=EACH_SIDE_IF_QUIET - 1)
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
        """With one good mail every 15 s. The eight failed first at once, so that one spoke for the other."""
        times = [(600, 585, 540, 470, 400, 300, 230), (600, 590, 560, 480, 390, 320, 110)] * 4
        mails = [
            make_mail(
                status=Status.FAILED,
                errors=[self.entry(ago=ago) for ago in some],
                next_attempt_at=Now() - dt.timedelta(seconds=1),
            )
            for some in times
        ]
        now = time.monotonic()
        for mail in mails:
            here.neighbours.record(provider="sendgrid", id=mail.id, is_accepted=False, ended_at=now - 600)
        for ago in range(0, 595, 15):
            here.neighbours.record(provider="sendgrid", id=new_id(), is_accepted=True, ended_at=now - ago)
        outcomes = here.screen(claim(limit=20))
        assert outcomes == {mail.id: Outcome(Verdict.EXHAUSTED) for mail in mails}

    def test_a_row_that_was_given_back_is_not_judged_twice(self, here):
        for ago in (30, 10):
            accept_around(ago=ago)
        errors = [self.entry(ago=ago) for ago in (30, 10)]
        make_mail(status=Status.PENDING, errors=errors, retry_count=2)
        due_now()
        row = claim_one()
        assert here.screen([row]) == {} and row.retry_count == 2

    def test_after_a_restart_nothing_is_charged(self):
        row = self.failed()
        drain.reset()
        assert drain.current().screen([row]) == {} and row.retry_count == 0
