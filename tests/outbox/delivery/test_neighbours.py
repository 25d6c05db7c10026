"""Whose failure it was, judged by what first attempts of others met around it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from outbox.database.ids import new_id
from outbox.delivery.gate.neighbours import KEPT_SECONDS, Neighbours

NOW = 10_000.0


@pytest.fixture
def seen() -> Neighbours:
    return Neighbours()


def attempts(seen: Neighbours, *, accepted: int = 0, failed: int = 0, at: float, provider: str = "p") -> None:
    for number in range(accepted + failed):
        seen.record(provider=provider, id=new_id(), is_accepted=number < accepted, ended_at=at)


def own(seen: Neighbours, *, id=None, at: Sequence[float] = (NOW,), provider: str = "p") -> int:
    return seen.count_own_failures(provider=provider, id=id or new_id(), at=at)


def test_failures_are_the_messages_own_when_others_were_accepted_around_them(seen):
    for at in (NOW - 3, NOW + 20, NOW + 43):
        attempts(seen, accepted=8, at=at)
    assert own(seen, at=[NOW, NOW + 40]) == 2


def test_one_failure_alone_is_never_proven(seen):
    attempts(seen, accepted=500, at=NOW - 3)
    attempts(seen, accepted=500, at=NOW + 3)
    assert own(seen) == 0


def test_failures_in_one_gap_between_acceptances_are_one(seen):
    attempts(seen, accepted=30, at=NOW - 30)
    attempts(seen, accepted=30, at=NOW + 30)
    assert own(seen, at=[NOW, NOW + 5, NOW + 10, NOW + 20]) == 0
    attempts(seen, accepted=1, at=NOW + 8)
    assert own(seen, at=[NOW, NOW + 5, NOW + 10, NOW + 20]) == 2


def test_neighbours_of_all_failures_count_together_and_each_once(seen):
    for number in range(23):
        attempts(seen, accepted=1, at=NOW + 5 * number)
    moments = [NOW + 7, NOW + 52, NOW + 97]
    assert own(seen, at=moments) == 0
    attempts(seen, accepted=1, at=NOW + 5 * 23)
    assert own(seen, at=moments) == 3


def test_a_failure_among_others_that_failed_proves_nothing_and_is_counted_once_the_rest_is_proven(seen):
    attempts(seen, failed=8, at=NOW)
    for number in range(1, 30):
        attempts(seen, accepted=1, at=NOW + 15 * number)
    assert own(seen, at=[NOW, NOW + 20, NOW + 50]) == 0
    assert own(seen, at=[NOW, NOW + 20, NOW + 200, NOW + 400]) == 4


def test_one_other_failure_needs_twenty_more_acceptances(seen):
    moments = [NOW + 0.5, NOW + 20.5]
    for at in (NOW - 2, NOW + 3, NOW + 18, NOW + 23):
        attempts(seen, accepted=10, at=at)
    attempts(seen, failed=1, at=NOW + 23)
    assert own(seen, at=moments) == 0  # one of twenty on that side
    attempts(seen, accepted=10, at=NOW + 23)
    assert own(seen, at=moments) == 2


def test_others_that_were_accepted_before_alone_prove_nothing(seen):
    attempts(seen, accepted=500, at=NOW - 3)
    assert own(seen, at=[NOW, NOW + 40]) == 0


def test_acceptances_of_another_provider_prove_nothing(seen):
    for at in (NOW - 3, NOW + 20, NOW + 43):
        attempts(seen, accepted=50, at=at, provider="q")
    assert own(seen, at=[NOW, NOW + 40]) == 0


def test_its_own_first_failure_does_not_speak_for_it(seen):
    id = new_id()
    seen.record(provider="p", id=id, is_accepted=False, ended_at=NOW)
    for at in (NOW - 3, NOW + 20, NOW + 43):
        attempts(seen, accepted=8, at=at)
    assert own(seen, id=id, at=[NOW, NOW + 40]) == 2


@pytest.mark.parametrize("share", [0.2, 0.35, 0.5, 1.0])
@pytest.mark.parametrize("moment", [1.0, 30.0, 59.0])
def test_in_a_brown_out_no_failure_is_the_messages_own(seen, share, moment):
    chance = random.Random(7)
    for tick in range(-2400, 2400):  # 20 a second, bad from NOW to NOW + 60
        at = NOW + tick / 20
        bad = NOW <= at < NOW + 60 and chance.random() < share
        attempts(seen, accepted=not bad, failed=bad, at=at)
    assert own(seen, at=[NOW + moment * part / 4 for part in range(5)]) == 0


def test_what_the_process_did_not_see_charges_nothing(seen):
    assert own(seen, at=[NOW, NOW + 40]) == 0


def test_it_forgets_after_two_hours(seen):
    attempts(seen, accepted=1, at=NOW)
    attempts(seen, accepted=1, at=NOW + KEPT_SECONDS + 10)
    assert len(seen._buckets["p"]) == 1
