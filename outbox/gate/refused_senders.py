"""The senders that a provider refuses, as one process knows them: an unverified address or domain.

A refused sender stops only its own profile at this provider: the breaker stays closed, and the e-mails of
other profiles go on. One e-mail of the stopped profile tests the provider every `every_seconds`, and the
others wait for longer the longer the stop lasts. The first acceptance ends the stop. Nothing is shared;
another process finds it out with one refused e-mail.
"""

from __future__ import annotations

import dataclasses
import random
import threading
import time
from collections.abc import Callable, Iterable

import structlog

log = structlog.get_logger(__name__)

#: The longest wait of an e-mail whose sender is refused.
LONGEST_WAIT_SECONDS = 900.0
#: A provider, and an e-mail's profile and sender.
Key = tuple[str, str, str]


@dataclasses.dataclass(slots=True)
class StoppedSender:
    """When the provider refused the sender first, and when an e-mail may ask it again."""

    since: float
    asks_at: float


class RefusedSenders:
    """The stopped senders. `clock` is monotonic, in seconds. Any thread may call any method."""

    def __init__(self, *, every_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every, self._clock = every_seconds, clock
        self._lock = threading.Lock()
        self._stops: dict[Key, StoppedSender] = {}

    def stopped_at(self, providers: Iterable[str], *, profile: str, sender: str) -> dict[str, float]:
        """Return the providers not to ask for an e-mail, each with the seconds to wait.

        The caller may ask a provider whose next test is due, and until the test after that no other caller
        may.
        """
        if not self._stops:  # the usual case; reading a dict is atomic
            return {}
        waits: dict[str, float] = {}
        with self._lock:
            now = self._clock()
            for provider in providers:
                if (stop := self._stops.get((provider, profile, sender))) is None:
                    continue
                if now >= stop.asks_at:
                    stop.asks_at = now + self._every
                else:
                    waits[provider] = self._wait(stop, now)
        return waits

    def refused(self, provider: str, *, profile: str, sender: str, reason: str) -> float:
        """Note that the provider refused the sender. Return how long the e-mail has to wait, in seconds."""
        with self._lock:
            now = self._clock()
            stop = self._stops.setdefault((provider, profile, sender), StoppedSender(now, now))
            is_new, stop.asks_at = stop.asks_at == now, now + self._every
            wait = self._wait(stop, now)
        if is_new:
            log.error("sender refused", provider=provider, profile=profile, sender=sender, reason=reason)
        return wait

    def accepted(self, provider: str, *, profile: str, sender: str) -> None:
        """Note that the provider accepted an e-mail of the sender."""
        if self._stops:
            with self._lock:
                stop = self._stops.pop((provider, profile, sender), None)
            if stop is not None:
                log.info("sender accepted again", provider=provider, profile=profile, sender=sender)

    def _wait(self, stop: StoppedSender, now: float) -> float:
        """Return a random wait: at least until the next test, and about as long as the stop has lasted."""
        longest = max(self._every, min(now - stop.since, LONGEST_WAIT_SECONDS))
        return max(stop.asks_at - now, longest * random.uniform(0.5, 1.0))  # noqa: S311 - spreads retries
