"""Who may send now, over all processes: each provider's circuit breaker and the common rate, kept in Redis.

One round trip for each send: the breakers' states and a place in the rate's sequence (GCRA) by the same
script, by Redis' own clock. Where Redis is away, every process goes on by itself, with what it knew of the
breakers and its share of the rate, and asks again once a second. Nothing here raises for Redis' sake.
Called from sending threads by an app's delivery module; the admin reads and forces.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import redis
import structlog
from redis.backoff import NoBackoff
from redis.retry import Retry

from outbox.delivery import breaker as circuit
from outbox.delivery.breaker import Breaker, Permit, Rules, State

log = structlog.get_logger(__name__)

PREFIX = "orderpost:gate:"
CONNECT_SECONDS, READ_SECONDS = 0.25, 0.5
AWAY_SECONDS = 1.0
ALIVE_SECONDS = 5.0
_TRIES = 20

#: KEYS: the rate's time, then the breakers. ARGV: microseconds for each place, how many may come at once,
#: how long a place may be waited for (-1: none is wanted). Answers the time and the wait, in microseconds,
#: and the states; the place is taken only if its wait is not too long.
_LOOK = """
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local wait = 0
local each, burst, patience = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
if each > 0 then
  local due = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now - each * (burst - 1))
  wait = math.max(0, due - now)
  if wait <= patience then redis.call('SET', KEYS[1], string.format('%.0f', due + each), 'PX', 60000) end
end
local answer = {string.format('%.0f', now), string.format('%.0f', wait)}
for i = 2, #KEYS do answer[i + 1] = redis.call('GET', KEYS[i]) or '' end
return answer
"""
#: Compare and set: KEYS: a breaker. ARGV: what it was (empty: not there), what it becomes.
_SWAP = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """The answer to `Gate.enter`: the provider to ask, how long to wait before (seconds), and its permit.

    Without a provider none may be asked now, and `wait` says when to come again.
    """

    provider: str
    wait: float
    permit: Permit


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """One provider as a person sees it; times in seconds from now, or ago."""

    provider: str
    state: State
    breaker: Breaker
    reopens_in: float
    changed_ago: float | None


class Gate:
    """See the module. `rate` is sends a second over all processes, 0 for no limit; `burst` come at once."""

    def __init__(
        self,
        *,
        providers: Sequence[str],
        url: str,
        rate: float,
        burst: float,
        rules: Rules = Rules(),  # noqa: B008 - frozen
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.providers = list(providers)
        self.rate, self.burst, self.rules, self._chance = rate, burst, rules, chance
        client = redis.Redis.from_url(
            url,
            socket_connect_timeout=CONNECT_SECONDS,
            socket_timeout=READ_SECONDS,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
        )
        self._client = client
        self._look, self._swap = client.register_script(_LOOK), client.register_script(_SWAP)
        self._lock = threading.Lock()
        self._away_until = 0.0
        self._away = False
        self._known: dict[str, Breaker] = {name: Breaker() for name in self.providers}
        self._local_due = 0.0
        self._alive, self._alive_at = 1, 0.0

    # --- what senders ask ---
    def enter(self, *, patience: float = 60.0, only: str | None = None, without: Sequence[str] = ()) -> Entry:
        """This function will choose the first provider that may be asked and take a place in the rate.

        A place that is over `patience` seconds away is not taken. `only` and `without` narrow the choice.
        """
        now, delay, shared = self._see(patience=patience)
        if delay > patience:
            return Entry("", delay, Permit(False, wait=delay))
        names = [name for name in self.providers if name not in without and only in (None, name)]
        wait = self.rules.cap
        for name in names:
            permit = self._change(
                name,
                shared,
                lambda breaker, at: circuit.enter(breaker, self.rules, now=at, probe=random.getrandbits(48)),
                now,
            )
            if permit.allowed:
                return Entry(name, delay, permit)
            wait = min(wait, permit.wait)
        return Entry("", wait, Permit(False, wait=wait))

    def room(self, *, batch: int, horizon: float = 1.0) -> tuple[int, float]:
        """This function will say how many rows are worth claiming now, and if none, when to come again.

        No more than the rate lets out within `horizon` seconds, what others have taken of it left out.
        """
        now, ahead, _ = self._see()
        states = [breaker.state(now) for breaker in self._known.values()]
        if State.CLOSED in states and not self.rate:
            return batch, 0.0
        if State.CLOSED in states:
            if ahead > horizon / 2:
                return 0, ahead - horizon / 2
            return min(batch, max(1, int(self.rate * (horizon - ahead)))), 0.0
        if State.HALF_OPEN in states:
            halves = [one for one in self._known.values() if one.state(now) is State.HALF_OPEN]
            free = max(self.rules.probes - sum(at > now for _, at in one.probes) for one in halves)
            return (min(batch, free), 0.0) if free else (0, 1.0)
        waits = [circuit.enter(one, self.rules, now=now, probe=0)[1].wait for one in self._known.values()]
        return 0, max(0.05, min(waits, default=1.0))

    def succeeded(self, entry: Entry) -> None:
        """This function will tell that a provider did its work; costs nothing while nothing had failed."""
        if entry.permit.probe is None and not entry.permit.failures:
            return
        self._tell(entry.provider, lambda breaker, at: circuit.succeeded(breaker, entry.permit, now=at))

    def failed(self, entry: Entry, *, reason: str, at_once: bool = False) -> bool:
        """This function will tell that a provider did not, and say whether it is open now."""
        facts: dict[str, Any] = {"chance": self._chance(), "at_once": at_once, "reason": reason}

        def change(breaker: Breaker, at: float) -> Breaker:
            return circuit.failed(breaker, self.rules, entry.permit, now=at, **facts)

        return self._tell(entry.provider, change).open_until is not None

    def pause(self, entry: Entry, *, seconds: float, reason: str) -> None:
        """This function will keep everyone from a provider that asked for it."""

        def change(breaker: Breaker, at: float) -> Breaker:
            return circuit.paused(breaker, until=at + seconds, reason=reason)

        self._tell(entry.provider, change)

    def run(self, provider: str) -> tuple[bool, int]:
        """This function will say whether a provider is open, and how many failures in a row it has."""
        self._see()
        return self._known[provider].open_until is not None, self._known[provider].failures

    # --- what a person asks ---
    def views(self) -> list[View]:
        """This function will show every provider's breaker."""
        now, _, _ = self._see()
        return [
            View(
                name,
                one.state(now),
                one,
                max(0.0, max(one.open_until or 0.0, one.paused_until) - now),
                now - one.changed_at if one.changed_at else None,
            )
            for name, one in self._known.items()
        ]

    def force(self, provider: str, to: Literal["open", "closed"] | None, *, reason: str) -> bool:
        """This function will open or close a breaker until a person lifts it; False if Redis is away."""
        self._tell(provider, lambda breaker, at: circuit.forced(breaker, to=to, now=at, reason=reason))
        return not self._away

    @property
    def is_shared(self) -> bool:
        """Whether Redis was there when it was last asked."""
        return not self._away

    # --- Redis, or this process alone ---
    def _see(self, *, patience: float | None = None) -> tuple[float, float, bool]:
        """The time, how long to wait for a place, and whether both are shared; refreshes what is known.

        With `patience` the place is taken, if it is not further away.
        """
        each = 1_000_000 / self.rate if self.rate else 0
        keys = [f"{PREFIX}rate", *(PREFIX + name for name in self.providers)]
        wished = -1 if patience is None else int(patience * 1e6)
        answer = self._ask(lambda: self._look(keys=keys, args=[each, self.burst, wished]))
        if answer is None:
            return time.time(), self._local_wait(patience), False
        now, wait, *states = cast("list[str]", answer)
        for name, state in zip(self.providers, states, strict=True):
            self._known[name] = _load(state)
        self._count_alive()
        return int(now) / 1e6, int(wait) / 1e6, True

    def _tell(self, name: str, change: Callable[[Breaker, float], Breaker]) -> Breaker:
        now, _, shared = self._see()

        def changed(breaker: Breaker, at: float) -> tuple[Breaker, Permit]:
            return change(breaker, at), Permit(False)

        self._change(name, shared, changed, now)
        return self._known[name]

    def _change(
        self,
        name: str,
        shared: bool,
        change: Callable[[Breaker, float], tuple[Breaker, Permit]],
        now: float,
    ) -> Permit:
        """Change a breaker by a pure function: by compare and set while Redis is there, else here alone."""
        for _ in range(_TRIES):
            if not shared:
                with self._lock:
                    before = self._known[name]
                    after, permit = change(before, now)
                    self._known[name] = after
                _log_change(name, before, after, now)
                return permit
            before = self._known[name]
            after, permit = change(before, now)
            if after == before:
                return permit
            pair = [_dump(before), _dump(after)]
            if self._ask(functools.partial(self._swap, keys=[PREFIX + name], args=pair)) == 1:
                self._known[name] = after
                _log_change(name, before, after, now)
                return permit
            now, _, shared = self._see()
        return Permit(False, wait=0.1)

    def _ask(self, call: Callable[[], Any]) -> Any:
        """What Redis answers, or None while it is away: then one thread asks again once a second."""
        if self._away:
            with self._lock:
                if time.monotonic() < self._away_until:
                    return None
                self._away_until = time.monotonic() + AWAY_SECONDS
        try:
            answer = call()
        except redis.RedisError as error:
            self._away_until = time.monotonic() + AWAY_SECONDS
            if not self._away:
                self._away = True
                log.warning("rate and breakers are this process's own: Redis is away", error=str(error))
            return None
        if self._away:
            self._away = False
            log.info("rate and breakers are shared again")
        return answer

    def _local_wait(self, patience: float | None) -> float:
        """How far away the next place in this process's share of the rate is; taken as in the script."""
        if not self.rate:
            return 0.0
        each = self._alive / self.rate
        with self._lock:
            now = time.monotonic()
            due = max(self._local_due, now - each * (self.burst - 1))
            wait = max(0.0, due - now)
            if patience is not None and wait <= patience:
                self._local_due = due + each
            return wait

    def _count_alive(self) -> None:
        """Say once a second that this process is alive, and count those that are."""
        now = time.monotonic()
        if now - self._alive_at < 1.0:
            return
        self._alive_at = now
        key, at = f"{PREFIX}alive", time.time()
        pipe = self._client.pipeline(transaction=False)
        pipe.zadd(key, {f"{os.uname().nodename}:{os.getpid()}": at})
        pipe.zremrangebyscore(key, 0, at - ALIVE_SECONDS)
        pipe.expire(key, 60)
        pipe.zcard(key)
        answer = self._ask(pipe.execute)
        if answer:
            self._alive = max(1, int(answer[-1]))


def _dump(breaker: Breaker) -> str:
    return "" if breaker == Breaker() else json.dumps(dataclasses.asdict(breaker), separators=(",", ":"))


def _load(text: str) -> Breaker:
    if not text:
        return Breaker()
    fields = json.loads(text)
    return Breaker(**fields | {"probes": tuple((number, at) for number, at in fields["probes"])})


def _log_change(name: str, before: Breaker, after: Breaker, now: float) -> None:
    if after.forced != before.forced:
        log.warning("circuit forced", provider=name, to=after.forced or "nothing", reason=after.reason)
    elif after.epoch != before.epoch and after.open_until is not None:
        log.error(
            "circuit opened", provider=name, reason=after.reason, seconds=round(after.open_until - now, 1)
        )
    elif after.epoch != before.epoch:
        log.info("circuit closed", provider=name)
    elif after.paused_until != before.paused_until:
        seconds = round(after.paused_until - now, 1)
        log.warning("provider asked for a pause", provider=name, seconds=seconds, reason=after.reason)
