"""Whose failure it was, judged by what first attempts of others met around it."""

from __future__ import annotations

import random

import pytest

from outbox.core.ids import new_id
from outbox.delivery.neighbours import KEPT_SECONDS, Neighbours

NOW = 10_000.0


@pytest.fixture
def seen() -> Neighbours:
    return Neighbours()


def attempts(seen: Neighbours, *, accepted: int = 0, failed: int = 0, at: float, provider: str = "p") -> None:
    for number in range(accepted + failed):
        seen.record(provider=provider, id=new_id(), accepted=number < accepted, at=at)


def own(seen: Neighbours, *, id=None, at: float = NOW, provider: str = "p") -> bool:
    return seen.blame_message(provider=provider, id=id or new_id(), at=at)


def test_it_is_the_messages_own_when_others_were_accepted_before_and_after(seen):
    attempts(seen, accepted=2, at=NOW - 3)
    attempts(seen, accepted=1, at=NOW + 2)
    assert own(seen)


def test_two_others_are_too_few(seen):
    attempts(seen, accepted=1, at=NOW - 3)
    attempts(seen, accepted=1, at=NOW + 2)
    assert not own(seen)


def test_others_that_were_accepted_before_alone_prove_nothing(seen):
    attempts(seen, accepted=500, at=NOW - 3)
    assert not own(seen)


def test_acceptances_of_another_provider_prove_nothing(seen):
    attempts(seen, accepted=50, at=NOW - 3, provider="q")
    attempts(seen, accepted=50, at=NOW + 2, provider="q")
    assert not own(seen)


def test_its_own_first_failure_does_not_speak_for_it(seen):
    id = new_id()
    seen.record(provider="p", id=id, accepted=False, at=NOW)
    attempts(seen, accepted=2, at=NOW - 3)
    attempts(seen, accepted=1, at=NOW + 2)
    assert own(seen, id=id)


@pytest.mark.parametrize("share", [0.2, 0.35, 0.5, 1.0])
@pytest.mark.parametrize("moment", [1.0, 30.0, 59.0])
def test_in_a_brown_out_no_failure_is_the_messages_own(seen, share, moment):
    chance = random.Random(7)
    for tick in range(-2400, 2400):  # 20 a second, bad from NOW to NOW + 60
        at = NOW + tick / 20
        bad = NOW <= at < NOW + 60 and chance.random() < share
        attempts(seen, accepted=not bad, failed=bad, at=at)
    assert not own(seen, at=NOW + moment)


def test_in_a_quiet_shop_the_nearest_within_two_minutes_decide(seen):
    for minute in (-2, -1, 1, 2):
        attempts(seen, accepted=1, at=NOW + 55 * minute)
    assert own(seen)


def test_a_burst_of_bad_messages_long_before_does_not_excuse_a_later_failure(seen):
    attempts(seen, failed=8, at=NOW - 100)
    for step in (-30, -15, 15, 30):
        attempts(seen, accepted=1, at=NOW + step)
    assert own(seen)


def test_what_the_process_did_not_see_charges_nothing(seen):
    assert not own(seen)


def test_it_forgets_after_two_hours(seen):
    attempts(seen, accepted=1, at=NOW)
    attempts(seen, accepted=1, at=NOW + KEPT_SECONDS + 10)
    assert len(seen._buckets["p"]) == 1
