"""A circuit breaker as a value: what one provider's state is, and what it becomes. Pure: no clock, no store.

`gate` keeps one for each provider in Redis, so that all workers share it. Times are seconds of the caller's
clock.

Closed, it lets everything through and remembers which messages failed in a row. It opens at five different
ones with no acceptance for a second, or at once when the provider refuses us (a wrong key). Open, it lets one
message through now and then, over all workers: one that was never tried at most every 5 seconds, one that
waits at most every 30. (The gate sends waiting ones to another provider if one is closed.) The first
acceptance closes it. Each opening and closing starts a new epoch, and a failure of an older one changes
nothing.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Literal


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
    """When a breaker opens, and how often it lets a message through while it is open; seconds."""

    threshold: int = 5
    quiet_seconds: float = 1.0  # it opens only when nothing was accepted for so long
    untried_every_seconds: float = 5.0
    waiting_every_seconds: float = 30.0


class State(enum.StrEnum):
    """What a person sees."""

    CLOSED = "closed"
    OPEN = "open"
    PAUSED = "paused"  # the provider asked everyone to wait (429)


@dataclasses.dataclass(frozen=True, slots=True)
class Breaker:
    """One provider's state. `opened_at` is None while closed; `failed` names different messages."""

    epoch: int = 0
    failed: tuple[str, ...] = ()  # in a row
    accepted_at: float = 0.0  # kept while there are failures
    opened_at: float | None = None
    probed_at: float = 0.0  # when an open breaker last let any message through
    waiting_probed_at: float = 0.0  # … one that had been tried before
    paused_until: float = 0.0
    forced: Literal["open", "closed"] | None = None
    reason: str = ""
    changed_at: float = 0.0

    def state(self, now: float) -> State:
        """Return the state at `now`. A manual override wins."""
        if self.forced:
            return State.OPEN if self.forced == "open" else State.CLOSED
        if self.opened_at is not None:
            return State.OPEN
        return State.PAUSED if now < self.paused_until else State.CLOSED


@dataclasses.dataclass(frozen=True, slots=True)
class Permit:
    """The answer to "may I send?". `wait_seconds`: until asking again may help, if not allowed.

    `is_probe`: the breaker is open, so a failure of this attempt is the provider's.
    """

    is_allowed: bool
    epoch: int = 0
    is_probe: bool = False
    wait_seconds: float = 0.0


def enter(breaker: Breaker, rules: Rules, *, now: float, is_untried: bool) -> tuple[Breaker, Permit]:
    """Let a message through or not; `is_untried`: it has no recorded failure."""
    state = breaker.state(now)
    if state is State.CLOSED:
        return breaker, Permit(True, breaker.epoch)
    untried_in, waiting_in = next_probes(breaker, rules, now=now)
    wait = untried_in if is_untried else waiting_in
    if wait > 0:
        return breaker, Permit(False, wait_seconds=wait)
    return dataclasses.replace(
        breaker, probed_at=now, waiting_probed_at=breaker.waiting_probed_at if is_untried else now
    ), Permit(True, breaker.epoch, is_probe=True)


def next_probes(breaker: Breaker, rules: Rules, *, now: float) -> tuple[float, float]:
    """Return the seconds until an untried message may test the provider, and until a retried one may.

    For a breaker that is not closed. One that is forced open lets nothing through.
    """
    if breaker.forced:
        return rules.waiting_every_seconds, rules.waiting_every_seconds
    paused = max(0.0, breaker.paused_until - now)
    if breaker.opened_at is None:
        return paused, paused
    untried = max(paused, breaker.probed_at + rules.untried_every_seconds - now)
    return untried, max(untried, breaker.waiting_probed_at + rules.waiting_every_seconds - now)


def accepted(breaker: Breaker, *, now: float) -> Breaker:
    """End a run of failures, and close an open breaker."""
    if breaker.opened_at is not None:
        return Breaker(
            epoch=breaker.epoch + 1,
            accepted_at=now,
            paused_until=breaker.paused_until,
            forced=breaker.forced,
            reason="accepted",
            changed_at=now,
        )
    return dataclasses.replace(breaker, failed=(), accepted_at=now) if breaker.failed else breaker


def failed(
    breaker: Breaker,
    rules: Rules,
    permit: Permit,
    *,
    now: float,
    message: str,
    accepted_at: float,
    at_once: bool,
    reason: str,
) -> Breaker:
    """Count a failed message, and open the breaker if that is one too many.

    `at_once`: the provider refuses us, so waiting for more failures is of no use. `accepted_at`: when the
    caller last saw an acceptance. A failure of an older epoch, or under a manual override, changes nothing.
    """
    if permit.epoch != breaker.epoch or breaker.opened_at is not None or breaker.forced:
        return breaker
    names = breaker.failed if message in breaker.failed else (*breaker.failed, message)[-rules.threshold :]
    quiet = now - max(breaker.accepted_at, accepted_at) >= rules.quiet_seconds
    if not at_once and (len(names) < rules.threshold or not quiet):
        return dataclasses.replace(breaker, failed=names, reason=reason)
    return Breaker(
        epoch=breaker.epoch + 1,
        opened_at=now,
        probed_at=now,
        waiting_probed_at=now,
        paused_until=breaker.paused_until,
        reason=reason,
        changed_at=now,
    )


def paused(breaker: Breaker, *, until: float, reason: str) -> Breaker:
    """Keep everyone away until a time; the longest pause wins."""
    if until <= breaker.paused_until:
        return breaker
    return dataclasses.replace(breaker, paused_until=until, reason=reason)


def forced(breaker: Breaker, *, to: Literal["open", "closed"] | None, now: float, reason: str) -> Breaker:
    """Follow a manual override until it is taken back; then the breaker starts closed and fresh."""
    return Breaker(epoch=breaker.epoch + 1, forced=to, reason=reason, changed_at=now)
