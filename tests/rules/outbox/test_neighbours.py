"""Whose failure it was, judged by what first attempts of others met around it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from outbox.delivery.gate import neighbours as module
from outbox.delivery.gate.neighbours import QUIET_SECONDS
from tests.kit.words import EACH_SIDE, EACH_SIDE_IF_QUIET, Neighbours, new_id

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


def test_what_the_process_did_not_see_charges_nothing(seen):
    assert own(seen, at=[NOW, NOW + 40]) == 0


def test_it_forgets_the_oldest_of_many(seen, monkeypatch):
    monkeypatch.setattr(module, "MOST", 100)
    for number in range(1000):
        attempts(seen, accepted=1, at=NOW + number)
    assert len(seen._ended["p"]) <= 100 and seen._ended["p"][-1][0] == NOW + 999
