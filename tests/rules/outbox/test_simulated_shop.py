"""Who becomes a dead letter in hours of a simulated shop: poisonous mails do, and no others."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.kit.words import Status
from tests.rules.outbox.simulated_shop import HASTY, PATIENT, Simulation, at_random, buy

HOUR = 3600.0
#: The suite looks at a few shops, `make drills` at many.
SEEDS = [*range(2), *(pytest.param(seed, marks=pytest.mark.drill) for seed in range(2, 20))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("policy", [PATIENT, HASTY], ids=["patient", "hasty"])
@pytest.mark.parametrize("every", [2.0, 15.0])
def test_eight_poisonous_mails_at_once_are_dead_letters_and_delay_no_good_one(every, policy, seed):
    chance = random.Random(seed)
    poison = buy([60 + 0.1 * number for number in range(8)], poisonous=True)
    good = buy([every * number + chance.random() for number in range(int(1200 / every))])
    Simulation(policy=policy, chance=chance, fails=lambda _: False).run([*poison, *good], seconds=1200)
    assert Counter(mail.status for mail in poison) == {Status.DEAD_LETTERED: 8}
    # Chance draws the waits, and one shop of a hundred needs a few seconds more than ten minutes.
    assert sorted(mail.ended_at - 60 for mail in poison)[-2] < 600
    later = [mail for mail in good if mail.bought_at > 61]  # an open breaker prefers the newest
    assert max(mail.ended_at - mail.bought_at for mail in later) < 6


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("policy", [PATIENT, HASTY], ids=["patient", "hasty"])
@pytest.mark.parametrize(
    ("rate", "seconds"), [(1 / 60, 24 * HOUR), (1 / 15, 6 * HOUR), (1 / 4, HOUR), (1, 1000), (20, 60)]
)
def test_a_brown_out_makes_no_dead_letter(rate, seconds, policy, seed):
    chance = random.Random(seed)
    mails = buy(at_random(rate=rate, seconds=seconds, chance=chance))
    Simulation(policy=policy, chance=chance, fails=lambda _: chance.random() < 0.35).run(
        mails, seconds=2 * seconds + HOUR
    )
    assert {mail.status for mail in mails} == {Status.SENT}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("policy", [PATIENT, HASTY], ids=["patient", "hasty"])
@pytest.mark.parametrize(
    ("rate", "lasts", "every"),
    [
        (1 / 15, 7, 90),
        (1 / 15, 100, 600),
        (1 / 4, 3, 60),
        (1, 20, 200),
        (1 / 15, 2 * HOUR, 3 * HOUR),
        (20, 5, 60),
    ],
)
def test_outages_make_no_dead_letter_however_often_they_come_and_long_they_last(
    rate, lasts, every, policy, seed
):
    chance = random.Random(seed)
    seconds = max(2 * every, 1000 / rate)
    mails = buy(at_random(rate=rate, seconds=seconds, chance=chance))
    Simulation(policy=policy, chance=chance, fails=lambda now: (now + every / 2) % every < lasts).run(
        mails, seconds=seconds + 3 * HOUR
    )
    assert {mail.status for mail in mails} == {Status.SENT}


@pytest.mark.parametrize("seed", SEEDS)
def test_poisonous_mails_become_dead_letters_after_an_outage_and_not_in_it(seed):
    chance = random.Random(seed)
    poison = buy([1000 + number for number in range(3)], poisonous=True)
    good = buy(at_random(rate=0.5, seconds=HOUR, chance=chance))
    Simulation(policy=PATIENT, chance=chance, fails=lambda now: 990 < now < 2790).run(
        [*poison, *good], seconds=2 * HOUR
    )
    assert {mail.status for mail in poison} == {Status.DEAD_LETTERED}
    assert min(mail.ended_at for mail in poison) > 2790
    assert {mail.status for mail in good} == {Status.SENT}
