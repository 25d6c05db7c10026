"""A circuit breaker as a pure value: the state of one provider, and its transitions. No clock, no store.

`gate` keeps one for each provider in Redis, where all workers share it. Times are seconds of the caller's
clock.

A closed breaker lets everything through and remembers which messages failed in a row. It opens after five
different failed messages and a second without an acceptance, or at once when the provider refuses us (a wrong
key). An open breaker lets through at most one untried message every 5 seconds and one waiting message every
30, over all workers. (The gate sends waiting messages to another provider if that one's breaker is closed.)
The first acceptance closes the breaker. Each opening and closing starts a new epoch, and a failure of an
older epoch changes nothing.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Literal


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
    """When a breaker opens, and how often an open breaker lets a message through."""

    threshold: int = 5
    quiet_seconds: float = 1.0  # it opens only if the provider has accepted nothing for so long
    untried_every_seconds: float = 5.0
    waiting_every_seconds: float = 30.0
    #: A breaker that opens again within this time after it closed fails again and again.
    steady_seconds: float = 60.0


class BreakerState(enum.StrEnum):
    """The state that the admin and metrics show."""

    CLOSED = "closed"
    OPEN = "open"
    PAUSED = "paused"  # the provider asked everyone to wait (429)


@dataclasses.dataclass(frozen=True, slots=True)
class Breaker:
    """One provider's state. `opened_at` is None while closed. `failed` names different messages."""

    epoch: int = 0
    failed: tuple[str, ...] = ()  # in a row
    accepted_at: float = 0.0  # kept while there are failures
    opened_at: float | None = None
    probed_at: float = 0.0  # when an open breaker last let any message through
    waiting_probed_at: float = 0.0  # when it last let through a message that had been tried before
    paused_until: float = 0.0
    forced: Literal["open", "closed"] | None = None
    reason: str = ""
    changed_at: float = 0.0
    #: Since when it has opened again and again, 0 if it has not, and the reason of the last opening.
    flaps_since: float = 0.0
    failure: str = ""

    def state(self, now: float) -> BreakerState:
        """Return the state at `now`. A manual override wins."""
        if self.forced:
            return BreakerState.OPEN if self.forced == "open" else BreakerState.CLOSED
        if self.opened_at is not None:
            return BreakerState.OPEN
        return BreakerState.PAUSED if now < self.paused_until else BreakerState.CLOSED


def enter(breaker: Breaker, rules: Rules, *, now: float, is_untried: bool) -> tuple[Breaker, float]:
    """Return the breaker afterwards, and in how many seconds to ask again, 0 if the message may be sent now.

    If `is_untried`, the message has no recorded failure.
    """
    if breaker.state(now) is BreakerState.CLOSED:
        return breaker, 0.0
    untried_in, waiting_in = next_probes(breaker, rules, now=now)
    wait_seconds = untried_in if is_untried else waiting_in
    if wait_seconds > 0:
        return breaker, wait_seconds
    waiting_probed_at = breaker.waiting_probed_at if is_untried else now
    return dataclasses.replace(breaker, probed_at=now, waiting_probed_at=waiting_probed_at), 0.0


def next_probes(breaker: Breaker, rules: Rules, *, now: float) -> tuple[float, float]:
    """Return the seconds until an untried message may test the provider, and until a retried one may.

    The breaker must not be closed. A breaker that is forced open lets nothing through.
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
            flaps_since=breaker.flaps_since,
            failure=breaker.reason,
        )
    return dataclasses.replace(breaker, failed=(), accepted_at=now) if breaker.failed else breaker


def failed(
    breaker: Breaker,
    rules: Rules,
    *,
    epoch: int,
    now: float,
    message: str,
    accepted_at: float,
    at_once: bool,
    reason: str,
) -> Breaker:
    """Count a failed message, and open the breaker if the rules say so.

    `epoch` is the breaker's when the message was sent, and `accepted_at` is when the caller last saw an
    acceptance. With `at_once`, the provider refuses us, and one failure is enough. A failure of an older
    epoch or under a manual override changes nothing.
    """
    if epoch != breaker.epoch or breaker.opened_at is not None or breaker.forced:
        return breaker
    names = breaker.failed if message in breaker.failed else (*breaker.failed, message)[-rules.threshold :]
    quiet = now - max(breaker.accepted_at, accepted_at) >= rules.quiet_seconds
    if not at_once and (len(names) < rules.threshold or not quiet):
        return dataclasses.replace(breaker, failed=names, reason=reason)
    is_again = bool(breaker.failure) and now - breaker.changed_at < rules.steady_seconds
    return Breaker(
        epoch=breaker.epoch + 1,
        opened_at=now,
        probed_at=now,
        waiting_probed_at=now,
        paused_until=breaker.paused_until,
        reason=reason,
        changed_at=now,
        flaps_since=(breaker.flaps_since or now) if is_again else 0.0,
    )


def paused(breaker: Breaker, *, until: float, reason: str) -> Breaker:
    """Let no message through before `until`. The longest pause wins."""
    if until <= breaker.paused_until:
        return breaker
    return dataclasses.replace(breaker, paused_until=until, reason=reason)


def forced(breaker: Breaker, *, to: Literal["open", "closed"] | None, now: float, reason: str) -> Breaker:
    """Set a manual override, or with None remove it. Then the breaker is closed and has no failures."""
    return Breaker(epoch=breaker.epoch + 1, forced=to, reason=reason, changed_at=now)
