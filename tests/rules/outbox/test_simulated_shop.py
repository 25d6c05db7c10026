"""Hours of a simulated shop: poisonous mails become dead letters, and no others.

The breaker, the decisions, the waits and the rule of first attempts are real. Only the time, the provider
and the drain are simulated: a mail is claimed when it is due, and a send takes no time.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from runtime.process.backoff import FULL_JITTER, RetryPolicy
from tests.kit.words import (
    Breaker,
    EmailPolicy,
    FirstAttempts,
    Outcome,
    Rules,
    Status,
    Verdict,
    decide_status,
)
from tests.kit.words import breaker as circuit

HOUR = 3600.0
#: The suite looks at a few shops, `make drills` at many.
SEEDS = [*range(2), *(pytest.param(seed, marks=pytest.mark.drill) for seed in range(2, 20))]
RETRIES = 3
#: The defaults of the settings, and a shop that tries again every few seconds.
PATIENT = EmailPolicy(RetryPolicy(30, 3600, jitter=FULL_JITTER), hold_seconds=120)
HASTY = EmailPolicy(RetryPolicy(1, 8, jitter=FULL_JITTER), hold_seconds=120)


@dataclasses.dataclass(slots=True)
class Mail:
    """One e-mail, with times in seconds. `judged` has the times of failures that a claim judges."""

    id: uuid.UUID
    bought_at: float
    poisonous: bool = False
    attempts: int = 0
    retry_count: int = 0
    judged: list[float] = dataclasses.field(default_factory=list)
    status: Status = Status.PENDING
    ended_at: float = 0.0


def buy(times: Iterable[float], *, poisonous: bool = False) -> list[Mail]:
    return [Mail(uuid.uuid4(), at, poisonous) for at in times]


def at_random(*, rate: float, seconds: float, chance: random.Random) -> list[float]:
    """Return the random times of independent customers, on average `rate` a second."""
    times = [0.0]
    while times[-1] < seconds:
        times.append(times[-1] + chance.expovariate(rate))
    return times


class Simulation:
    """`fails` says whether the provider fails a good mail that it gets at a time."""

    def __init__(self, *, policy: EmailPolicy, chance: random.Random, fails: Callable[[float], bool]) -> None:
        self._policy, self._chance, self._fails = policy, chance, fails
        self._rules, self._breaker, self._accepted_at = Rules(), Breaker(), float("-inf")
        self._first_attempts = FirstAttempts()
        self._queue: list[tuple[float, int, Mail | None]] = []  # None means that a probe is due
        self._pushed, self._probe_at = 0, math.inf
        self._parked: list[Mail] = []  # e-mails that became due while the breaker was open

    def run(self, mails: Iterable[Mail], *, seconds: float) -> None:
        """Send the mails until none waits, or until `seconds` have passed."""
        for mail in mails:
            self._push(mail.bought_at, mail)
        while self._queue and self._queue[0][0] <= seconds:
            now, _, due = heapq.heappop(self._queue)
            if due is None:
                self._probe(now)
            else:
                self._claim(due, now)

    def _push(self, at: float, mail: Mail | None) -> None:
        self._pushed += 1
        heapq.heappush(self._queue, (at, self._pushed, mail))

    def _probe(self, now: float) -> None:
        """Let the newest untried e-mail test the provider, or else the one that has waited longest."""
        if now < self._probe_at:
            return  # because an earlier probe came first, and the next one has its own time
        self._probe_at = math.inf
        if self._parked:
            untried = [mail for mail in self._parked if not mail.attempts]
            mail = max(untried, key=lambda untried_mail: untried_mail.bought_at, default=self._parked[0])
            self._parked.remove(mail)
            self._claim(mail, now)

    def _claim(self, mail: Mail, now: float) -> None:
        """Judge and send a due mail, or leave it until the breaker lets something through."""
        is_probe = self._breaker.opened_at is not None
        self._breaker, wait_seconds = circuit.enter(
            self._breaker, self._rules, now=now, is_untried=not mail.attempts
        )
        if wait_seconds:
            self._parked.append(mail)
            if now + wait_seconds < self._probe_at:
                self._probe_at = now + wait_seconds + 0.001
                self._push(self._probe_at, None)
            return
        own = self._first_attempts.count_own_failures(provider="p", at=mail.judged, now=now)
        mail.retry_count = max(mail.retry_count, min(own, RETRIES))
        if own > RETRIES:
            mail.status, mail.ended_at = Status.DEAD_LETTERED, now
        elif (wait := self._send(mail, now, is_probe=is_probe)) is not None:
            self._push(now + wait, mail)

    def _send(self, mail: Mail, now: float, *, is_probe: bool) -> float | None:
        accepted = not mail.poisonous and not self._fails(now)
        if not mail.attempts:
            self._first_attempts.record(provider="p", is_accepted=accepted, ended_at=now)
        if accepted:
            self._accepted_at, self._breaker = now, circuit.accepted(self._breaker, now=now)
            mail.status, mail.ended_at = Status.SENT, now
            for parked in self._parked:
                self._push(now, parked)
            self._parked.clear()
            return None
        self._breaker = circuit.failed(
            self._breaker,
            self._rules,
            epoch=self._breaker.epoch,
            now=now,
            message=str(mail.id),
            accepted_at=self._accepted_at,
            at_once=False,
            reason="503",
        )
        outcome = Outcome(Verdict.TRANSIENT, "p", code="503", is_probe=is_probe)
        wait = decide_status(
            outcome=outcome,
            retry_count=mail.retry_count,
            max_retries=RETRIES,
            attempts=mail.attempts,
            policy=self._policy,
            chance=self._chance.random(),
        ).wait_seconds
        mail.attempts += 1
        if outcome.is_judged_later:
            mail.judged.append(now)
        return wait


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("policy", [PATIENT, HASTY], ids=["patient", "hasty"])
@pytest.mark.parametrize("every", [2.0, 15.0])
def test_eight_poisonous_mails_at_once_are_dead_letters_and_delay_no_good_one(every, policy, seed):
    chance = random.Random(seed)
    poison = buy([60 + 0.1 * number for number in range(8)], poisonous=True)
    good = buy([every * number + chance.random() for number in range(int(1200 / every))])
    Simulation(policy=policy, chance=chance, fails=lambda _: False).run([*poison, *good], seconds=1200)
    assert Counter(mail.status for mail in poison) == {Status.DEAD_LETTERED: 8}
    # Chance draws the waits. Of 60 shops, two need up to 15 seconds more than ten minutes.
    assert sorted(mail.ended_at - 60 for mail in poison)[-2] < 620
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
