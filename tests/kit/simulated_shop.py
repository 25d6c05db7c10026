"""Hours of a simulated shop, whose e-mails the product's own rules retry, hold and end.

The breakers, the decisions, the waits and the rule of `whose_failure` are the product's. Only the time, the
providers, the drain and the table are simulated: an e-mail is claimed when it is due, and
`Shop.read_evidence` reads what the product's query reads (a test compares them).
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import heapq
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from notifications.changes.whose_failure import SLICE_ROWS, SLICES, FailureEvidence, are_own
from runtime.process.backoff import FULL_JITTER, SLIGHT_JITTER, RetryPolicy
from tests.kit.words import Breaker, EmailPolicy, Outcome, Rules, Status, Verdict, breaker, decide_status

MINUTE, HOUR = 60.0, 3600.0
RETRIES = 3
#: The defaults of the settings, a shop that tries again every few seconds, and one with a list of delays.
PATIENT = EmailPolicy(RetryPolicy(30, 3600, jitter=FULL_JITTER), hold_seconds=120)
HASTY = EmailPolicy(RetryPolicy(1, 8, jitter=FULL_JITTER), hold_seconds=120)
LISTED = EmailPolicy(RetryPolicy(1, 1, (300, 900, 3600), jitter=SLIGHT_JITTER), hold_seconds=120)
#: After this a person decides.
OLDEST = 72 * HOUR

#: Say whether a provider fails a good e-mail that it gets at a time. The last value is drawn from [0, 1).
Fails = Callable[[float, "Email", float], bool]


def never(now: float, email: Email, chance: float) -> bool:
    return False


def brown_out(share: float, since: float, until: float, *, noise: float = 0.0) -> Fails:
    """Fail a share of all sends for a time, and a share of noise outside of it."""
    return lambda now, email, chance: chance < (share if since < now < until else noise)


def noise(share: float) -> Fails:
    return brown_out(share, 0, math.inf)


def flapping(lasts: float, every: float) -> Fails:
    """Fail everything for a time, again and again."""
    return lambda now, email, chance: (now + every / 2) % every < lasts


def some(share: float, since: float, until: float) -> Fails:
    """Fail some recipients for a time: one domain."""
    return lambda now, email, chance: since < now < until and hash(email.at) % 1000 < share * 1000


@dataclasses.dataclass(slots=True, eq=False)
class Email:
    """One e-mail, with times in seconds."""

    at: float
    is_poison: bool = False
    #: The providers that failed it, when, and whether the failure counts.
    errors: list[tuple[str, float, bool]] = dataclasses.field(default_factory=list)
    attempts: int = 0
    retry_count: int = 0
    #: Its first attempt: who accepted it, and who failed it.
    accepted_by: str = ""
    failed_by: tuple[str, ...] = ()
    is_ambiguous: bool = False  # its last failure
    status: Status = Status.PENDING
    ended_at: float = math.inf


@dataclasses.dataclass(slots=True)
class Provider:
    """A simulated provider and its breaker."""

    name: str
    fails: Fails
    breaker: Breaker = dataclasses.field(default_factory=Breaker)
    accepted_at: float = -math.inf


@dataclasses.dataclass(frozen=True)
class Scenario:
    """What happens to a shop. Times are seconds after its start."""

    rate: float
    #: For how long customers buy, and for how long the shop is watched.
    seconds: float
    watched: float
    fails: Sequence[Fails] = (never,)
    poison: Sequence[float] = ()
    policy: EmailPolicy = PATIENT
    #: The share of failures whose answer is lost.
    ambiguous: float = 0.0
    #: How long a send takes, while others go on.
    latency: float = 0.0


class Shop:
    """Run a scenario. `read_all` reads all first attempts of others, and not only those of the query."""

    def __init__(self, scenario: Scenario, *, seed: int, read_all: bool = False) -> None:
        self._scenario, self._chance, self._read_all = scenario, random.Random(seed), read_all
        self._providers = [Provider(f"p{n}", fails) for n, fails in enumerate(scenario.fails)]
        self._rules = Rules()
        self._queue: list[tuple[float, int, Callable[[float], None]]] = []
        self._pushed, self._probe_at = 0, math.inf
        self._untried: list[Email] = []  # due while no provider may be asked
        self._waiting: list[tuple[float, int, Email]] = []
        self.sends = self.failed_sends = self.asked = 0
        times = at_random(rate=scenario.rate, seconds=scenario.seconds, chance=self._chance)
        emails = [Email(floor_to_ms(at)) for at in times]
        emails += [Email(at, is_poison=True) for at in scenario.poison]
        self.emails = sorted(emails, key=lambda email: email.at)
        self._written_at = [email.at for email in self.emails]
        self._firsts: dict[tuple[str, bool], list[float]] = {}

    def run(self) -> Shop:
        for email in self.emails:
            self._push(email.at, lambda now, email=email: self._claim(email, now))  # type: ignore[misc]
        while self._queue and self._queue[0][0] <= self._scenario.watched:
            now, _, act = heapq.heappop(self._queue)
            act(now)
        return self

    def count(self) -> Counter[tuple[bool, Status]]:
        return Counter((email.is_poison, email.status) for email in self.emails)

    def dead(self, *, poison: bool) -> list[Email]:
        return [e for e in self.emails if e.is_poison == poison and e.status == Status.DEAD_LETTERED]

    def read_evidence(self, email: Email, *, provider: str, since: float, now: float) -> tuple[int, int]:
        """Return how many first attempts of others the provider accepted and failed, as the query does."""
        bounds = (floor_to_ms(since + (now - since) * n / SLICES) for n in range(SLICES + 1))
        places = [bisect.bisect_left(self._written_at, bound) for bound in bounds]
        read: list[Email] = []
        for first, end in itertools.pairwise(places):
            others = self.emails[first : min(end, first + SLICE_ROWS + 1)]
            if email in others:
                others.remove(email)
            read += others[:SLICE_ROWS]
        accepted = sum(other.accepted_by == provider for other in read)
        return accepted, sum(provider in other.failed_by for other in read)

    def _are_own(self, email: Email, now: float) -> bool:
        self.asked += 1
        evidence = []
        for provider in {name for name, _, counts in email.errors if counts}:
            times = [at for name, at, counts in email.errors if counts and name == provider]
            if self._read_all:
                accepted, failed = (
                    len(ended) - bisect.bisect_right(ended, times[0])
                    for ended in (self._firsts.get((provider, verdict), []) for verdict in (True, False))
                )
            else:
                accepted, failed = self.read_evidence(email, provider=provider, since=times[0], now=now)
            evidence.append(FailureEvidence(len(times), accepted, failed))
        return are_own(evidence)

    # --- the drain ---
    def _push(self, at: float, act: Callable[[float], None]) -> None:
        self._pushed += 1
        heapq.heappush(self._queue, (at, self._pushed, act))

    def _probe(self, now: float) -> None:
        """Let the newest untried e-mail test the provider, or else the one that has waited longest."""
        if now < self._probe_at:
            return
        self._probe_at = math.inf
        if self._untried:
            self._claim(self._untried.pop(), now)
        elif self._waiting:
            self._claim(heapq.heappop(self._waiting)[2], now)

    def _claim(self, email: Email, now: float) -> None:
        if now - email.at >= OLDEST:
            email.status, email.ended_at = Status.DEAD_LETTERED, math.inf
        elif (
            email.is_ambiguous
            and email.retry_count > RETRIES
            and self._are_own(email, max(at for _, at, counts in email.errors if counts))
        ):
            email.status, email.ended_at = Status.DEAD_LETTERED, now
        else:
            self._ask(email, now, earlier=())

    def _ask(self, email: Email, now: float, *, earlier: tuple[Outcome, ...]) -> None:
        """Ask the next provider that may be asked."""
        waits = []
        for provider in self._providers:
            if provider.name in [answer.provider for answer in earlier]:
                continue
            is_probe = provider.breaker.opened_at is not None
            provider.breaker, wait = breaker.enter(
                provider.breaker, self._rules, now=now, is_untried=not email.errors
            )
            if not wait:
                answer = functools.partial(
                    self._answer,
                    email,
                    provider=provider,
                    is_probe=is_probe,
                    epoch=provider.breaker.epoch,
                    earlier=earlier,
                )
                self._push(now + self._scenario.latency, answer) if self._scenario.latency else answer(now)
                return
            waits.append(wait)
        if earlier:
            self._settle(email, now, dataclasses.replace(earlier[-1], earlier=earlier[:-1]))
            return
        if email.errors:
            self._pushed += 1
            heapq.heappush(self._waiting, (now, self._pushed, email))
        else:
            self._untried.append(email)
        if now + min(waits) < self._probe_at:
            self._probe_at = now + min(waits) + 0.001
            self._push(self._probe_at, self._probe)

    def _answer(
        self,
        email: Email,
        now: float,
        *,
        provider: Provider,
        is_probe: bool,
        epoch: int,
        earlier: tuple[Outcome, ...],
    ) -> None:
        self.sends += 1
        if not email.is_poison and not provider.fails(now, email, self._chance.random()):
            provider.accepted_at = now
            provider.breaker = breaker.accepted(provider.breaker, now=now)
            self._settle(email, now, Outcome(Verdict.ACCEPTED, provider.name, earlier=earlier))
            self._release(now)
            return
        self.failed_sends += 1
        provider.breaker = breaker.failed(
            provider.breaker,
            self._rules,
            epoch=epoch,
            now=now,
            message=str(id(email)),
            accepted_at=provider.accepted_at,
            at_once=False,
            reason="503",
        )
        is_ambiguous = self._scenario.ambiguous and self._chance.random() < self._scenario.ambiguous
        verdict = Verdict.AMBIGUOUS if is_ambiguous else Verdict.TRANSIENT
        outcome = Outcome(verdict, provider.name, code="503", is_probe=is_probe)
        if is_ambiguous:
            self._settle(email, now, dataclasses.replace(outcome, earlier=earlier))
        else:
            self._ask(email, now, earlier=(*earlier, outcome))

    def _release(self, now: float) -> None:
        """Claim all that waited for a provider."""
        parked = [
            *self._untried,
            *(email for _, _, email in sorted(self._waiting, key=lambda item: item[:2])),
        ]
        self._untried.clear()
        self._waiting.clear()
        for email in parked:
            self._push(now, lambda at, email=email: self._claim(email, at))  # type: ignore[misc]

    def _settle(self, email: Email, now: float, outcome: Outcome) -> None:
        if not email.errors:
            email.failed_by = tuple(failure.provider for failure in outcome.failures)
            email.accepted_by = outcome.provider if outcome.verdict is Verdict.ACCEPTED else ""
            for name, verdict in [*((name, False) for name in email.failed_by), (email.accepted_by, True)]:
                self._firsts.setdefault((name, verdict), []).append(now)
        email.errors += [(failure.provider, now, failure.counts) for failure in outcome.failures]
        if outcome.needs_answer(retry_count=email.retry_count, max_retries=RETRIES):
            outcome = dataclasses.replace(outcome, is_own=self._are_own(email, now))
        decision = decide_status(
            outcome=outcome,
            retry_count=email.retry_count,
            max_retries=RETRIES,
            attempts=email.attempts,
            lost=0,
            policy=self._scenario.policy,
            chance=self._chance.random(),
        )
        email.attempts += 1
        email.status, email.retry_count = decision.status, decision.retry_count
        email.is_ambiguous = outcome.verdict is Verdict.AMBIGUOUS
        if decision.wait_seconds is None:
            email.ended_at = now
        else:
            self._push(now + decision.wait_seconds, lambda at: self._claim(email, at))


def floor_to_ms(seconds: float) -> float:
    """Return the time that an id has."""
    return math.floor(seconds * 1000) / 1000


def at_random(*, rate: float, seconds: float, chance: random.Random) -> Iterable[float]:
    """Return the random times of independent customers, on average `rate` a second."""
    now = 0.0
    while (now := now + chance.expovariate(rate)) < seconds:
        yield now


EIGHT = [60 + n / 10 for n in range(8)]
#: What providers and customers do. Each scenario says it in its name.
SCENARIOS = {
    "35% for 2 min, 20/s": Scenario(20, 10 * MINUTE, 3 * HOUR, [brown_out(0.35, 120, 240)]),
    "35% for 2 min, 1/15s": Scenario(1 / 15, HOUR, 6 * HOUR, [brown_out(0.35, 120, 240)]),
    "60% for 10 min, 20/s": Scenario(20, 15 * MINUTE, 3 * HOUR, [brown_out(0.60, 120, 720)]),
    "60% for 10 min, 1/s": Scenario(1, 30 * MINUTE, 3 * HOUR, [brown_out(0.60, 120, 720)]),
    "100% for 6 h, 1/s": Scenario(1, 7 * HOUR, 12 * HOUR, [brown_out(1.0, 600, 600 + 6 * HOUR)]),
    "100% for 6 h, 1/10min": Scenario(1 / 600, 12 * HOUR, 24 * HOUR, [brown_out(1.0, 600, 600 + 6 * HOUR)]),
    "35% for 24 h, 1/60s": Scenario(1 / 60, 24 * HOUR, 48 * HOUR, [noise(0.35)]),
    "35% for 2 h, 5/s": Scenario(5, 2 * HOUR, 12 * HOUR, [noise(0.35)]),
    "60% for 6 h, 1/s": Scenario(1, 6 * HOUR, 24 * HOUR, [noise(0.60)]),
    "flaps 5 s of 60, 20/s": Scenario(20, 20 * MINUTE, 4 * HOUR, [flapping(5, 60)]),
    "flaps 20 s of 200, 1/s": Scenario(1, 3 * HOUR, 8 * HOUR, [flapping(20, 200)]),
    "flaps 100 s of 600, 1/15s": Scenario(1 / 15, 12 * HOUR, 24 * HOUR, [flapping(100, 600)]),
    "flaps 2 of 3 h, 1/15s": Scenario(1 / 15, 24 * HOUR, 30 * HOUR, [flapping(2 * HOUR, 3 * HOUR)]),
    "noise 2%, 5/s, 4 h": Scenario(5, 4 * HOUR, 12 * HOUR, [noise(0.02)]),
    "noise 10%, 5/s, 2 h": Scenario(5, 2 * HOUR, 12 * HOUR, [noise(0.10)]),
    "domain 20% fails 1 h, 5/s": Scenario(5, 2 * HOUR, 12 * HOUR, [some(0.20, 600, 600 + HOUR)]),
    "domain 5% fails 1 h, 5/s": Scenario(5, 2 * HOUR, 12 * HOUR, [some(0.05, 600, 600 + HOUR)]),
    "out 30 min in noise 2%, 5/s": Scenario(5, 2 * HOUR, 12 * HOUR, [brown_out(1.0, 600, 2400, noise=0.02)]),
    "60% for 10 min, then noise 5%, 20/s": Scenario(
        20, 40 * MINUTE, 6 * HOUR, [brown_out(0.60, 120, 720, noise=0.05)]
    ),
    "poison 8 at once, 20/s": Scenario(20, 30 * MINUTE, 6 * HOUR, poison=EIGHT),
    "poison 8 at once, 1/15s": Scenario(1 / 15, 4 * HOUR, 24 * HOUR, poison=EIGHT),
    "poison 8, noise 10%, 5/s": Scenario(5, 2 * HOUR, 24 * HOUR, [noise(0.10)], poison=EIGHT),
    "poison 1, 1/10min": Scenario(1 / 600, 72 * HOUR, 100 * HOUR, poison=[HOUR]),
    "poison 1, 1/h": Scenario(1 / 3600, 80 * HOUR, 100 * HOUR, poison=[2 * HOUR]),
    "poison 3 in outage 30 min, 1/2s": Scenario(
        0.5, 4 * HOUR, 12 * HOUR, [brown_out(1.0, 990, 2790)], poison=[1000, 1001, 1002]
    ),
    "poison 5% of all, 1/s": Scenario(1, 2 * HOUR, 12 * HOUR, poison=[20.0 * n for n in range(1, 361)]),
    # --- lists of delays ---
    "listed: 35% for 2 h, 5/s": Scenario(5, 2 * HOUR, 24 * HOUR, [noise(0.35)], policy=LISTED),
    "listed: 100% for 6 h, 1/s": Scenario(
        1, 7 * HOUR, 12 * HOUR, [brown_out(1.0, 600, 600 + 6 * HOUR)], policy=LISTED
    ),
    "listed: poison 8 at once, 1/15s": Scenario(1 / 15, 4 * HOUR, 24 * HOUR, poison=EIGHT, policy=LISTED),
    # --- two providers ---
    "two: 60% and 5%, 5/s": Scenario(5, HOUR, 6 * HOUR, [brown_out(0.6, 120, 1920), noise(0.05)]),
    "two: 60% and 60%, 1/s": Scenario(1, 2 * HOUR, 24 * HOUR, [noise(0.6), noise(0.6)]),
    "two: 100% and 35%, 5/s": Scenario(5, HOUR, 8 * HOUR, [brown_out(1.0, 120, 3000), noise(0.35)]),
    "two: the second fails all, 1/s": Scenario(1, 2 * HOUR, 8 * HOUR, [noise(0.35), noise(1.0)]),
    "two: poison 8 at once, 1/15s": Scenario(1 / 15, 4 * HOUR, 24 * HOUR, [never, never], poison=EIGHT),
    "two: poison 8, 60% and 5%, 5/s": Scenario(
        5, 2 * HOUR, 24 * HOUR, [brown_out(0.6, 0, HOUR), noise(0.05)], poison=EIGHT
    ),
    # --- answers that are lost ---
    "lost answers: 60% for 10 min, 20/s": Scenario(
        20, 15 * MINUTE, 3 * HOUR, [brown_out(0.60, 120, 720)], ambiguous=0.5
    ),
    "lost answers: 35% for 2 h, 1/s": Scenario(1, 2 * HOUR, 12 * HOUR, [noise(0.35)], ambiguous=1.0),
    "lost answers: poison 8 at once, 1/15s": Scenario(
        1 / 15, 4 * HOUR, 24 * HOUR, poison=EIGHT, ambiguous=1.0
    ),
    # --- sends that take a while ---
    "slow: 60% for 10 min, 20/s": Scenario(20, 15 * MINUTE, 3 * HOUR, [brown_out(0.60, 120, 720)], latency=5),
    "slow: 100% for 10 min, 20/s": Scenario(20, 20 * MINUTE, 3 * HOUR, [brown_out(1, 120, 720)], latency=10),
    "slow: poison 8 at once, 20/s": Scenario(20, 30 * MINUTE, 6 * HOUR, poison=EIGHT, latency=5),
}
#: With this backoff, those that take long or have a quiet shop are left out.
HASTY_SCENARIOS = {
    f"hasty: {name}": dataclasses.replace(scenario, policy=HASTY)
    for name, scenario in SCENARIOS.items()
    if scenario.policy is PATIENT and scenario.watched <= 12 * HOUR and "100% for 6 h" not in name
}
