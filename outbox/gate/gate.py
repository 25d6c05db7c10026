"""Each provider's circuit breaker and the common rate limit, over all processes.

Sending threads ask `Gate.enter` before each send. The admin shows and forces breakers. `shared_gate` says
what happens while Redis is away.

A round trip to Redis is the most expensive part. A process takes up to `TAKE` slots of the rate in one. Each
slot is due at its own time and lapses `LIFE_SECONDS` later, or late sends would crowd into another second.
The breakers are as old as the last round trip: an opening or a pause in another process stops this one after
at most `TAKE` more sends, and one in this process at once.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from notifications.states.outcomes import Verdict
from outbox.gate import breaker as circuit
from outbox.gate.breaker import Breaker, BreakerState, Rules
from outbox.gate.refused_senders import RefusedSenders
from outbox.gate.shared_gate import SharedGate

TAKE = 10
LIFE_SECONDS = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class ProviderChoice:
    """The provider to ask now, or if it is empty, after how many seconds to choose again.

    If `is_probe`, the provider's breaker is open, so a failure of this attempt is the provider's.
    """

    provider: str = ""
    epoch: int = 0
    is_probe: bool = False
    wait_seconds: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Capacity:
    """The number of rows to claim now. If none, ask again after `wait_seconds`.

    While no provider's breaker is closed, claim one row: one that was never tried (`is_untried_first`), or
    else, if `is_retry_allowed`, the one that has waited longest.
    """

    rows: int
    wait_seconds: float = 0.0
    is_untried_first: bool = False
    is_retry_allowed: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class ProviderState:
    """One provider's breaker for the admin and metrics. Times are relative to now."""

    provider: str
    state: BreakerState
    breaker: Breaker
    reopens_in_seconds: float
    changed_ago_seconds: float | None
    #: Whether it opened again soon after it had closed, and has not stayed closed for a while since.
    is_flapping: bool = False

    @property
    def is_refusing(self) -> bool:
        """Return whether the breaker is open because the provider refuses our account."""
        is_open = self.state is BreakerState.OPEN and not self.breaker.forced
        return is_open and self.breaker.reason.startswith(Verdict.MISCONFIGURED)

    @property
    def words(self) -> str:
        """The state as a person says it."""
        if self.breaker.forced:
            return f"forced {self.breaker.forced}"
        if self.state is BreakerState.CLOSED:
            if self.is_flapping:
                return "working, but fails again and again"
            count = len(self.breaker.failed)
            failed = "one" if count == 1 else f"{count}"
            return f"working, but the last {failed} failed" if count else "working"
        return "refusing us" if self.is_refusing else f"resting until {self.resumes_at:%H:%M}"

    @property
    def resumes_at(self) -> dt.datetime:
        """When the next e-mail may ask the provider."""
        return dt.datetime.now(dt.UTC) + dt.timedelta(seconds=self.reopens_in_seconds)

    @property
    def error(self) -> str:
        """The provider's answer that opened the breaker: code and text."""
        breaker = self.breaker
        is_over = self.is_flapping and breaker.opened_at is None
        return (breaker.failure if is_over else breaker.reason).partition(" ")[2]


def describe_providers(
    breakers: Mapping[str, Breaker], *, rules: Rules, now: float
) -> dict[str, ProviderState]:
    """Return the state of each provider at `now`, by Redis' clock."""
    states = {}
    for name, breaker in breakers.items():
        state = breaker.state(now)
        is_closed = state is BreakerState.CLOSED
        reopens_in = 0.0 if is_closed else circuit.next_probes(breaker, rules, now=now)[0]
        changed_ago = now - breaker.changed_at if breaker.changed_at else None
        is_steady = state is BreakerState.CLOSED and now - breaker.changed_at >= rules.steady_seconds
        is_flapping = bool(breaker.flaps_since) and not is_steady
        states[name] = ProviderState(name, state, breaker, reopens_in, changed_ago, is_flapping)
    return states


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """One send that the rate allows from `due_at` to `lapses_at`, by the clock of `SendSlots`.

    The caller may use it only if `is_taken`. Otherwise it was too far away.
    """

    due_at: float
    is_taken: bool = True

    @property
    def lapses_at(self) -> float:
        return self.due_at + LIFE_SECONDS


class SendSlots:
    """The slots that one process has taken and not used yet. `clock` is monotonic, in seconds."""

    def __init__(self, shared: SharedGate, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._shared, self._clock = shared, clock
        #: At most the slots of `LIFE_SECONDS`, so that no process waits long for slots of another.
        self._size = min(TAKE, max(1, int(shared.rate * LIFE_SECONDS))) if shared.rate else TAKE
        self._lock = threading.Lock()
        self._free: deque[Slot] = deque()
        self._ahead = 0.0  # Redis' clock minus ours
        self._due = ""  # the rate's time after the last round trip

    def take_slot(self, *, patience_seconds: float) -> Slot:
        """Return the next slot. Do not take it if it is over `patience_seconds` away."""
        with self._lock:
            now = self._clock()
            while self._free and now > self._free[0].lapses_at:
                self._free.popleft()
            if not self._free:
                taken = self._shared.refresh(patience_seconds=patience_seconds, count=self._size)
                # Redis read its clock before this moment. No slot is used too early.
                now = self._clock()
                self._ahead, self._due = taken.now - now, taken.due
                if taken.count < 1:
                    return Slot(now + taken.wait_seconds, is_taken=False)
                # A slot that was free before is due now.
                waits = map(taken.slot_wait_seconds, range(taken.count))
                self._free.extend(Slot(now + max(0.0, wait)) for wait in waits)
            if self._free[0].due_at - now > patience_seconds:
                return dataclasses.replace(self._free[0], is_taken=False)
            return self._free.popleft()

    def redis_time(self) -> float:
        """Return the time by Redis' clock, computed from the last round trip."""
        return self._clock() + self._ahead

    def give_back(self) -> None:
        """Return unused slots to the rate. They lapse if another process has taken later ones."""
        with self._lock:
            count = len(self._free)
            self._free.clear()
            if count and self._due:
                self._shared.give_back(count=count, due=self._due)


class Gate:
    """The breakers and the rate limit of one set of providers.

    `rate` is the limit in sends a second over all processes, 0 for no limit. `burst` sends may happen at
    once. `clock` is the clock of the slots.
    """

    def __init__(
        self,
        *,
        providers: Sequence[str],
        url: str,
        rate: float,
        burst: float,
        rules: Rules = Rules(),  # noqa: B008 - frozen
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.providers, self.rate, self.rules = list(providers), rate, rules
        self._clock = clock
        self._shared = SharedGate(names=providers, url=url, rate=rate, burst=burst)
        self._slots = SendSlots(self._shared, clock=clock)
        self.senders = RefusedSenders(every_seconds=rules.waiting_every_seconds)
        self._accepted_at = dict.fromkeys(providers, float("-inf"))  # monotonic

    def enter(
        self,
        *,
        patience_seconds: float = 60.0,
        only: str | None = None,
        without: Sequence[str] = (),
        last: Sequence[str] = (),
        is_untried: bool = False,
        pause: Callable[[float], object] = time.sleep,
    ) -> ProviderChoice:
        """Take a slot of the rate, wait until it is due, and choose the first provider that may be asked.

        Take no slot that is over `patience_seconds` away, and do not use a slot that lapsed during the wait.
        `only` and `without` narrow the choice. Providers in `last` come after all others, in that order.
        `is_untried` says that the message has no recorded failure and was not resent. A tried message tests
        an open breaker only if every provider outside `without` has an open or paused breaker. `pause` sleeps
        for a number of seconds. If it returns true, choose no provider.
        """
        late = self._wait_for_slot(patience_seconds=patience_seconds, pause=pause)
        if late is not None:
            return ProviderChoice(wait_seconds=late)
        now, wait = self._slots.redis_time(), self.rules.waiting_every_seconds
        states = {
            name: breaker.state(now) for name, breaker in self._shared.breakers.items() if name not in without
        }
        may_test = is_untried or BreakerState.CLOSED not in states.values()
        for name in sorted(self.providers, key=lambda name: last.index(name) if name in last else -1):
            if name in without or only not in (None, name):
                continue
            if states[name] is BreakerState.OPEN and not may_test:
                continue
            choice = self._ask_breaker(name, now=now, is_untried=is_untried)
            if choice.provider:
                return choice
            wait = min(wait, choice.wait_seconds)
        return ProviderChoice(wait_seconds=wait)

    def _ask_breaker(self, name: str, *, now: float, is_untried: bool) -> ProviderChoice:
        def ask(breaker: Breaker, at: float) -> tuple[Breaker, ProviderChoice]:
            after, wait_seconds = circuit.enter(breaker, self.rules, now=at, is_untried=is_untried)
            is_probe = breaker.state(at) is not BreakerState.CLOSED
            provider = "" if wait_seconds else name
            return after, ProviderChoice(provider, breaker.epoch, is_probe, wait_seconds)

        return self._shared.change(name, ask, now=now) or ProviderChoice(wait_seconds=0.1)

    def _wait_for_slot(self, *, patience_seconds: float, pause: Callable[[float], object]) -> float | None:
        """Wait until a slot may be used and return None, or return after how many seconds to try again."""
        give_up = self._clock() + patience_seconds
        while True:
            slot = self._slots.take_slot(patience_seconds=give_up - self._clock())
            if not slot.is_taken:
                return max(0.0, slot.due_at - self._clock())
            while (left := slot.due_at - self._clock()) > 0:
                if pause(left):
                    return 0.0
            if self._clock() <= slot.lapses_at:
                return None

    def capacity(self, *, batch: int, horizon_seconds: float = 1.0) -> Capacity:
        """Return how many rows to claim now, at most `batch`, and if none, when to ask again.

        Return at most the unused rate capacity within `horizon_seconds`.
        """
        refreshed = self._shared.refresh()
        now, ahead = refreshed.now, refreshed.wait_seconds
        breakers = list(self._shared.breakers.values())
        if any(breaker.state(now) is BreakerState.CLOSED for breaker in breakers):
            if not self.rate:
                return Capacity(batch)
            if ahead > horizon_seconds / 2:
                return Capacity(0, ahead - horizon_seconds / 2)
            return Capacity(min(batch, max(1, int(self.rate * (horizon_seconds - ahead)))))
        probes = [circuit.next_probes(breaker, self.rules, now=now) for breaker in breakers]
        untried_in, waiting_in = (min(waits) for waits in zip(*probes, strict=True))
        if untried_in > 0:
            return Capacity(0, max(0.05, untried_in))
        return Capacity(1, max(0.05, waiting_in), is_untried_first=True, is_retry_allowed=waiting_in <= 0)

    def rest(self) -> None:
        """Give back unused slots: this process sends nothing for now."""
        self._slots.give_back()

    def accepted(self, choice: ProviderChoice) -> None:
        """Report that a provider took a message. This needs no Redis unless a failure came before."""
        self._accepted_at[choice.provider] = time.monotonic()
        breaker = self._shared.breakers[choice.provider]
        if choice.is_probe or breaker.failed or breaker.opened_at is not None:
            self._tell(choice.provider, lambda breaker, at: circuit.accepted(breaker, now=at))

    def failed(self, choice: ProviderChoice, *, message: str, reason: str, at_once: bool = False) -> None:
        """Report that a provider did not take a message. `message` is the message's name."""
        ago = time.monotonic() - self._accepted_at[choice.provider]

        def change(breaker: Breaker, at: float) -> Breaker:
            return circuit.failed(
                breaker,
                self.rules,
                epoch=choice.epoch,
                now=at,
                message=message,
                accepted_at=at - ago,
                at_once=at_once,
                reason=reason,
            )

        self._tell(choice.provider, change)

    def pause(self, choice: ProviderChoice, *, seconds: float, reason: str) -> None:
        """Stop sends to a provider for `seconds`, as it asked."""
        self._tell(
            choice.provider,
            lambda breaker, at: circuit.paused(breaker, until=at + seconds, reason=reason),
        )

    def read_providers(self) -> list[ProviderState]:
        now = self._shared.refresh().now
        return [*describe_providers(self._shared.breakers, rules=self.rules, now=now).values()]

    def force(self, provider: str, to: Literal["open", "closed"] | None, *, reason: str) -> bool:
        """Open or close a breaker until a person takes that back. Return False if Redis is away."""
        self._tell(provider, lambda breaker, at: circuit.forced(breaker, to=to, now=at, reason=reason))
        return self.is_shared

    @property
    def is_shared(self) -> bool:
        """Return whether Redis answered the last request."""
        return not self._shared.is_away

    def _tell(self, name: str, change: Callable[[Breaker, float], Breaker]) -> None:
        now = self._shared.refresh().now
        self._shared.change(name, lambda breaker, at: (change(breaker, at), True), now=now)
