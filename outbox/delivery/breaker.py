"""A circuit breaker as a value: what one provider's state is, and what it becomes. Pure: no clock, no store.

`outbox.delivery.gate` keeps one for each provider in Redis, so that all workers share it.
Times are seconds of whichever clock the caller keeps to.

Closed, it lets everything through and counts failures in a row. At the threshold, or at once when the
provider refuses us (a wrong key), it opens: nothing goes there. When its time is over it is half open: a few
probes may go at once. The first that succeeds closes it; one that fails opens it again, for twice as long up
to a cap. Each opening and closing starts a new epoch, and what began in an older one changes nothing.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Literal


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
    """How patient a breaker is. `seconds` of the first opening double with each further one up to `cap`."""

    threshold: int = 5
    seconds: float = 30.0
    cap: float = 600.0
    jitter: float = 0.2
    probes: int = 5
    probe_seconds: float = 60.0  # a probe whose end nobody tells is forgotten after this


class State(enum.StrEnum):
    """What a person sees."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half open"
    PAUSED = "paused"  # the provider asked everyone to wait (429)


@dataclasses.dataclass(frozen=True, slots=True)
class Breaker:
    """One provider's state. `open_until` is None while closed; `probes` are (number, when forgotten)."""

    epoch: int = 0
    failures: int = 0  # in a row
    openings: int = 0  # in a row, without a success between
    open_until: float | None = None
    paused_until: float = 0.0
    probes: tuple[tuple[int, float], ...] = ()
    forced: Literal["open", "closed"] | None = None
    reason: str = ""
    changed_at: float = 0.0

    def state(self, now: float) -> State:
        """This function will say what it is at `now`, a person's word first."""
        if self.forced:
            return State.OPEN if self.forced == "open" else State.CLOSED
        if self.open_until is not None:
            return State.OPEN if now < self.open_until else State.HALF_OPEN
        return State.PAUSED if now < self.paused_until else State.CLOSED


@dataclasses.dataclass(frozen=True, slots=True)
class Permit:
    """The answer to "may I send?". `wait`: seconds until asking again may help, if not allowed."""

    allowed: bool
    epoch: int = 0
    probe: int | None = None
    failures: int = 0
    wait: float = 0.0


def enter(breaker: Breaker, rules: Rules, *, now: float, probe: int) -> tuple[Breaker, Permit]:
    """This function will let a send through or not. `probe` is a number to know it by, if it becomes one."""
    state = breaker.state(now)
    if state is State.CLOSED:
        return breaker, Permit(True, breaker.epoch, failures=breaker.failures)
    if state is State.OPEN:
        until = breaker.open_until if breaker.open_until is not None else now
        return breaker, Permit(False, wait=rules.seconds if breaker.forced else until - now)
    if state is State.PAUSED:
        return breaker, Permit(False, wait=breaker.paused_until - now)
    probes = tuple(one for one in breaker.probes if one[1] > now)
    if now < breaker.paused_until or len(probes) >= rules.probes:
        return breaker, Permit(False, wait=max(1.0, breaker.paused_until - now))
    probes += ((probe, now + rules.probe_seconds),)
    return dataclasses.replace(breaker, probes=probes), Permit(True, breaker.epoch, probe, breaker.failures)


def succeeded(breaker: Breaker, permit: Permit, *, now: float) -> Breaker:
    """This function will end a run of failures, and close a half-open breaker if the success is a probe's."""
    if permit.epoch != breaker.epoch:
        return breaker
    if permit.probe is not None and breaker.open_until is not None:
        return Breaker(
            epoch=breaker.epoch + 1,
            paused_until=breaker.paused_until,
            forced=breaker.forced,
            reason="a probe succeeded",
            changed_at=now,
        )
    return dataclasses.replace(breaker, failures=0) if breaker.failures else breaker


def failed(
    breaker: Breaker, rules: Rules, permit: Permit, *, now: float, chance: float, at_once: bool, reason: str
) -> Breaker:
    """This function will count a failure, and open the breaker if that is one too many.

    `at_once`: the provider refuses us, so waiting for more failures is of no use. `chance`, drawn from
    [0, 1), spreads the reopenings. A failure of an older epoch changes nothing.
    """
    if permit.epoch != breaker.epoch or (breaker.open_until is not None and permit.probe is None):
        return breaker
    failures = breaker.failures + 1
    if permit.probe is None and not at_once and failures < rules.threshold:
        return dataclasses.replace(breaker, failures=failures, reason=reason)
    spread = 1 - rules.jitter + 2 * rules.jitter * chance
    seconds = min(rules.cap, rules.seconds * 2 ** min(breaker.openings, 30)) * spread
    return Breaker(
        epoch=breaker.epoch + 1,
        failures=failures,
        openings=breaker.openings + 1,
        open_until=now + seconds,
        paused_until=breaker.paused_until,
        forced=breaker.forced,
        reason=reason,
        changed_at=now,
    )


def paused(breaker: Breaker, *, until: float, reason: str) -> Breaker:
    """This function will keep everyone away until a time; the longest wish wins."""
    if until <= breaker.paused_until:
        return breaker
    return dataclasses.replace(breaker, paused_until=until, reason=reason)


def forced(breaker: Breaker, *, to: Literal["open", "closed"] | None, now: float, reason: str) -> Breaker:
    """This function will follow a person's word until it is taken back; then it starts closed and fresh."""
    return Breaker(epoch=breaker.epoch + 1, forced=to, reason=reason, changed_at=now)
