"""The breakers and the rate of all processes in Redis, or of this process alone while Redis is away.

One script reads the breakers and takes slots of the rate (GCRA) in one round trip, by Redis' clock. While
Redis is away, every process continues with its last copy of the breakers and with its share of the rate, and
asks Redis again once a second. A process's own slots are due after the shared slots that it took, and the
reverse, which keeps the rate when Redis fails and when it returns. No method here raises an error of Redis.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import redis
import structlog

from outbox.gate.breaker import Breaker
from runtime.process.redis_client import make_client

log = structlog.get_logger(__name__)

GATE_PREFIX = "orderpost:gate:"
BREAKER_PREFIX = "orderpost:breaker:"
#: Written to see whether Redis takes what is written.
WRITTEN = f"{GATE_PREFIX}written"
AWAY_SECONDS = 1.0
ALIVE_SECONDS = 5.0
_TRIES = 20
#: Marks a local breaker: the next answer of Redis replaces it.
_ALONE = "alone"

#: Take slots and read the breakers.
#: KEYS: the rate's time, then the breakers.
#: ARGV, times in microseconds: the time of one slot, the burst, the longest wait for a slot (-1: take none),
#: how many slots to take, and after how long the first one may be due at the earliest.
#: Answer: Redis' time, the wait for the first slot (below 0: it was free before), how many slots were taken,
#: the rate's time after that, and the breakers.
_REFRESH = """
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local each, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local patience, count = tonumber(ARGV[3]), tonumber(ARGV[4])
local wait, due = 0, ''
if each > 0 then
  local stored = tonumber(redis.call('GET', KEYS[1]) or '0')
  local first = math.max(stored, now - each * (burst - 1), now + tonumber(ARGV[5]))
  wait = first - now
  if patience < 0 or wait > patience then count = 0 end
  count = math.min(count, 1 + math.floor((patience - wait) / each))
  if count > 0 then
    due = string.format('%.0f', first + each * count)
    redis.call('SET', KEYS[1], due, 'PX', 60000)
  end
end
local answer = {string.format('%.0f', now), string.format('%.0f', wait), count, due}
for i = 2, #KEYS do answer[i + 3] = redis.call('GET', KEYS[i]) or '' end
return answer
"""
#: KEYS: the rate's time. ARGV: its value after slots were taken, and the microseconds to give back.
_GIVE_BACK = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('SET', KEYS[1], string.format('%.0f', ARGV[1] - ARGV[2]), 'PX', 60000)
end
"""
#: Compare and set. KEYS: a breaker. ARGV: its exact old text (empty: it does not exist), and its new text.
_SWAP = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""

Answer = TypeVar("Answer")


@dataclasses.dataclass(frozen=True, slots=True)
class Refreshed:
    """The answer to `SharedGate.refresh`, in seconds of Redis' clock.

    The first slot is due in `first_seconds`, which is below 0 if the slot was free before. `each_seconds` is
    the time between two slots. `due` is the rate's time afterwards, as text.
    """

    now: float
    first_seconds: float
    count: int
    each_seconds: float = 0.0
    due: str = ""

    @property
    def wait_seconds(self) -> float:
        """The time to wait for the first slot."""
        return max(0.0, self.first_seconds)

    def slot_wait_seconds(self, number: int) -> float:
        """Return in how many seconds slot `number`, counted from 0, is due. Below 0 it was free before."""
        return self.first_seconds + number * self.each_seconds


class SharedGate:
    """The breakers of one set of providers, and their rate.

    `rate` is the limit in sends a second over all processes, 0 for no limit. `burst` sends may happen at
    once.
    """

    def __init__(self, *, names: Sequence[str], url: str, rate: float, burst: float) -> None:
        self.names, self.rate, self.burst = list(names), rate, burst
        self.breakers: dict[str, Breaker] = {name: Breaker() for name in names}
        self.is_away = False
        self._texts: dict[str, str] = dict.fromkeys(names, "")
        self._swaps = dict.fromkeys(names, 0)
        self._client = make_client(url=url, decode=True)
        self._refresh, self._swap = (
            self._client.register_script(_REFRESH),
            self._client.register_script(_SWAP),
        )
        self._return = self._client.register_script(_GIVE_BACK)
        self._lock = threading.Lock()
        self._away_until = 0.0
        #: The end of the last slot that this process took, and of the last that it took without Redis
        #: (monotonic).
        self._taken_until = self._alone_until = 0.0
        self._alive, self._alive_at = 1, 0.0

    def refresh(self, *, patience_seconds: float | None = None, count: int = 1) -> Refreshed:
        """Take slots of the rate, and read the breakers into `breakers`.

        With `patience_seconds`, take up to `count` slots that are due within that time, or without Redis at
        most one. Without it, take none.
        """
        each = 1_000_000 / self.rate if self.rate else 0
        keys = [f"{GATE_PREFIX}rate", *(BREAKER_PREFIX + name for name in self.names)]
        wished = -1 if patience_seconds is None else int(patience_seconds * 1e6)
        swaps = self._swaps.copy()
        asked_at = time.monotonic()
        after = int((self._alone_until - asked_at) * 1e6)
        answer = self._ask(lambda: self._refresh(keys=keys, args=[each, self.burst, wished, count, after]))
        if answer is None:
            wait = self._local_wait(patience_seconds)
            return Refreshed(
                time.time(), wait, int(patience_seconds is not None and wait <= patience_seconds)
            )
        now, first, taken, due, *texts = cast("list[str]", answer)
        with self._lock:
            if int(taken) > 0:
                self._taken_until = time.monotonic() + (int(first) + int(taken) * each) / 1e6
            for name, text in zip(self.names, texts, strict=True):
                # An answer from before another thread's change must not undo it.
                if text != self._texts[name] and self._swaps[name] == swaps[name]:
                    self._texts[name], self.breakers[name] = text, load(text)
        if patience_seconds is not None:  # a process that only shows the breakers needs no share of the rate
            self._count_alive()
        return Refreshed(int(now) / 1e6, int(first) / 1e6, int(taken), each / 1e6, due)

    def give_back(self, *, count: int, due: str) -> None:
        """Give back the last `count` slots that were taken up to `due`, unless a process took later ones."""
        microseconds = count * 1_000_000 / self.rate
        with self._lock:
            self._taken_until -= microseconds / 1e6
        self._ask(lambda: self._return(keys=[f"{GATE_PREFIX}rate"], args=[due, microseconds]))

    def change(
        self, name: str, change: Callable[[Breaker, float], tuple[Breaker, Answer]], *, now: float
    ) -> Answer | None:
        """Change a breaker by a pure function of it and the time, and return the function's answer.

        Compare and set in Redis, or while Redis is away change only this process's copy. Return None if other
        processes changed the breaker at every try.
        """
        for _ in range(_TRIES):
            if self.is_away:
                with self._lock:
                    before = self.breakers[name]
                    after, answer = change(before, now)
                    self.breakers[name], self._texts[name] = after, _ALONE
                log_change(name, before, after, now)
                return answer
            before, text = self.breakers[name], self._texts[name]
            after, answer = change(before, now)
            if after == before:
                return answer
            pair = [text, dump(after)]
            if self._ask(functools.partial(self._swap, keys=[BREAKER_PREFIX + name], args=pair)) == 1:
                with self._lock:
                    self._swaps[name] += 1
                    self._texts[name], self.breakers[name] = pair[1], after
                log_change(name, before, after, now)
                return answer
            now = self.refresh().now
        return None

    def _ask(self, call: Callable[[], Any]) -> Any:
        """Return Redis' answer, or None while Redis is away. Then one thread asks again once a second."""
        if self.is_away:
            with self._lock:
                if time.monotonic() < self._away_until:
                    return None
                self._away_until = time.monotonic() + AWAY_SECONDS
        try:
            if self.is_away:  # with full memory it still answers what only reads
                self._client.set(WRITTEN, "", px=1000)
            answer = call()
        except redis.RedisError as error:
            self._away_until = time.monotonic() + AWAY_SECONDS
            if not self.is_away:
                self.is_away = True
                log.warning("rate and breakers are this process's own: Redis is away", error=str(error))
            return None
        if self.is_away:
            self.is_away = False
            log.info("rate and breakers are shared again")
        return answer

    def _local_wait(self, patience_seconds: float | None) -> float:
        """Return the seconds until this process's share has a slot. Take the slot as `refresh` does."""
        if not self.rate:
            return 0.0
        each = self._alive / self.rate
        burst = max(1.0, self.burst / self._alive)
        with self._lock:
            now = time.monotonic()
            due = max(self._taken_until, now - each * (burst - 1))
            wait = max(0.0, due - now)
            if patience_seconds is not None and wait <= patience_seconds:
                self._taken_until = self._alone_until = due + each
            return wait

    def _count_alive(self) -> None:
        """Report once a second that this process sends, and count the processes that do."""
        now = time.monotonic()
        if now - self._alive_at < 1.0:
            return
        self._alive_at = now
        key, at = f"{GATE_PREFIX}alive", time.time()
        pipe = self._client.pipeline(transaction=False)
        pipe.zadd(key, {f"{os.uname().nodename}:{os.getpid()}": at})
        pipe.zremrangebyscore(key, 0, at - ALIVE_SECONDS)
        pipe.expire(key, 60)
        pipe.zcard(key)
        answer = self._ask(pipe.execute)
        if answer:
            self._alive = max(1, int(answer[-1]))


class Breakers(NamedTuple):
    """The breakers, Redis' time, and its error if it answers and refuses to write, as with full memory."""

    now: float
    by_name: dict[str, Breaker]
    refusal: redis.ResponseError | None


def read_breakers(names: Sequence[str]) -> Breakers:
    """Read the breakers without a `SharedGate`, and try to write. Raise `redis.RedisError`."""
    with make_client(decode=True) as client:
        pipe = client.pipeline(transaction=False)
        pipe.time()
        pipe.mget([BREAKER_PREFIX + name for name in names])
        pipe.set(WRITTEN, "", px=1000)
        answers = pipe.execute(raise_on_error=False)
    for answer in answers[:2]:
        if isinstance(answer, Exception):
            raise answer
    (seconds, micros), texts, written = answers
    by_name = {name: load(text or "") for name, text in zip(names, texts, strict=True)}
    refusal = written if isinstance(written, redis.ResponseError) else None
    return Breakers(seconds + micros / 1e6, by_name, refusal)


def dump(breaker: Breaker) -> str:
    """Write a breaker as JSON. A fresh breaker is the empty string."""
    return "" if breaker == Breaker() else json.dumps(dataclasses.asdict(breaker), separators=(",", ":"))


def load(text: str) -> Breaker:
    """Read a breaker. Ignore fields that this release does not know."""
    if not text:
        return Breaker()
    names = {field.name for field in dataclasses.fields(Breaker)}
    fields = {name: value for name, value in json.loads(text).items() if name in names}
    return Breaker(**fields | {"failed": tuple(fields.get("failed", ()))})


def log_change(name: str, before: Breaker, after: Breaker, now: float) -> None:
    if after.forced != before.forced:
        log.warning("circuit forced", provider=name, to=after.forced or "nothing", reason=after.reason)
    elif after.epoch != before.epoch and after.opened_at is not None:
        log.error("circuit opened", provider=name, reason=after.reason)
    elif after.epoch != before.epoch:
        log.info("circuit closed", provider=name)
    elif after.paused_until != before.paused_until:
        seconds = round(after.paused_until - now, 1)
        log.warning("provider asked for a pause", provider=name, seconds=seconds, reason=after.reason)
