"""The drain of this process: claim due e-mails, send them in threads, and write the outcomes.

One thread of the process claims and settles. Threads of `pool` send. A fork resets the drain.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from operator import attrgetter

import structlog
from django.conf import settings
from django.db import connections
from opentelemetry.trace import INVALID_SPAN, Span

from notifications.log import log_changes
from notifications.models import EmailNotification
from notifications.profiles import profiles
from notifications.states.outcomes import Outcome, Verdict
from notifications.states.transitions import DUE_STATES
from notifications.suppressions import suppress_refused
from notifications.wake import Reason
from outbox.claim import Claims, Lookback
from outbox.gate.breaker import Rules
from outbox.gate.gate import Capacity, Gate
from outbox.gate.neighbours import Neighbours
from outbox.in_flight import SETTLE_SECONDS, InFlight, Unsettled, settle_until
from outbox.metrics import TRIGGER_DELAYS
from outbox.screen import screen
from outbox.send import compute_send_timeout, fit_into_lease, send
from runtime.telemetry import health

log = structlog.get_logger(__name__)

#: A run waits at most so long for capacity, and returns before a longer wait. After so long, a caller tries
#: again to claim a due row that another session has locked.
SHORT_PAUSE_SECONDS = 1.0
#: Seconds between the untried e-mails that an open breaker lets through.
UNTRIED_SECONDS = 5.0
#: The outcome of a claimed row that is given back.
NOT_TRIED = Outcome(Verdict.RETURNED)


@dataclasses.dataclass(slots=True)
class Drained:
    """The report of a run.

    `pause_seconds` is how long to wait before the next run. If `has_more`, due rows are left. After
    `next_due_seconds`, the first waiting row that the run knows of is due. It is None if the run knows of
    none.
    """

    claimed: int = 0
    settled: int = 0
    pause_seconds: float = 0.0
    has_more: bool = False
    next_due_seconds: float | None = None


class Drain:
    """The drain of one process. The next run collects the sends that a run leaves in flight.

    The pool and the gate are created at their first use, with the settings of that moment.
    """

    def __init__(self) -> None:
        #: Held by the thread that runs the drain.
        self.draining = threading.Lock()
        self.stopping = threading.Event()
        self.neighbours = Neighbours()
        self.drain_span: Span = INVALID_SPAN  # of the latest run
        #: Set while due rows may exist that no claim has seen.
        self.woken = threading.Event()
        #: The first reason since the last claim.
        self.reason = Reason.POLL
        #: When the database last answered this drain (monotonic), which proves that the drain is not stuck.
        self.progress_at = -math.inf
        self._claims = Claims()
        self._claimed: deque[EmailNotification] = deque()  # sends not begun; those sent alone come last
        self._in_flight = InFlight()
        self._unsettled = Unsettled()
        self._done = Drained()

    @functools.cached_property
    def pool(self) -> Executor:
        """The sending threads, each with its own provider connections."""
        return ThreadPoolExecutor(settings.EMAIL_CONCURRENCY, thread_name_prefix="send")

    @functools.cached_property
    def gate(self) -> Gate:
        """The circuit breakers and the shared rate limit."""
        every = settings.BREAKER_OPEN_SECONDS
        return Gate(
            providers=settings.EMAIL_PROVIDERS,
            url=settings.REDIS_URL,
            rate=settings.EMAIL_RATE_LIMIT,
            burst=max(1.0, settings.EMAIL_RATE_LIMIT / 20),
            rules=Rules(untried_every_seconds=min(UNTRIED_SECONDS, every), waiting_every_seconds=every),
        )

    @functools.cached_property
    def send_timeout_seconds(self) -> float:
        """The longest duration of one send. None begins with less than that left of its lease."""
        return compute_send_timeout()

    @property
    def lookback(self) -> Lookback:
        """How far back the drain's next claim has to read."""
        return self._claims.lookback

    def wake(self, reason: Reason = Reason.POLL) -> None:
        """Make the current run claim again at once. Any thread may call this."""
        if not self.woken.is_set():
            self.reason = reason
        self.woken.set()
        self._in_flight.interrupt()

    def run(self, *, seconds: float, should_stop: Callable[[], bool] = lambda: False) -> Drained:
        """Send due rows and write their outcomes.

        After `seconds`, or once `should_stop` returns true, claim no row and give back rows whose send has
        not begun. Once `should_stop` returns true, also wait for every send, because no other run follows. A
        trigger calls `wake` to make a running drain claim again. Outcomes are written after 20 rows or 0.1 s,
        so that a crash causes few duplicates. If a claim or a screening fails, settle the sends in flight and
        raise its error.
        """
        self._done = done = Drained()
        self.woken.set()
        try:
            self._run(ends=time.monotonic() + seconds, should_stop=should_stop)
        finally:
            health.end("drain")
        done.has_more = self.woken.is_set() and not done.pause_seconds
        return done

    def _run(self, *, ends: float, should_stop: Callable[[], bool]) -> None:
        try:
            while self._is_busy() and not (
                should_stop() or self._done.pause_seconds or time.monotonic() >= ends
            ):
                health.beat("drain")
                self._screen(self._claim(should_stop))
                self._start_sends()
                self._collect()
                self._settle()
        except Exception:
            self._finish(should_stop)
            connections[EmailNotification.objects.db].close()
            raise
        self._finish(should_stop)

    def _is_busy(self) -> bool:
        return bool(
            self.woken.is_set() or self._claimed or self._in_flight.is_awaited or len(self._unsettled)
        )

    # --- claim ---
    def capacity(self) -> Capacity:
        """Return how many rows are worth claiming now."""
        return self.gate.capacity(batch=settings.POLL_BATCH_SIZE, horizon_seconds=fit_into_lease(1.0))

    def _claim(self, should_stop: Callable[[], bool]) -> list[EmailNotification]:
        """Claim rows if rows may be due, a thread is free, and the gate has capacity."""
        if self._in_flight.is_stuck:
            self._done.pause_seconds = SHORT_PAUSE_SECONDS
        if self._claimed or not self.woken.is_set() or not self._in_flight.has_room():
            return []
        capacity = self.capacity()
        if not capacity.rows:
            if capacity.wait_seconds > SHORT_PAUSE_SECONDS:
                self._done.pause_seconds = capacity.wait_seconds
            elif not self._in_flight:
                time.sleep(min(capacity.wait_seconds, SETTLE_SECONDS))
            return []
        shops = profiles.get()  # may read a table, and an error after the claim would keep the rows
        claimed_at = time.monotonic()
        reason = self.reason
        self.woken.clear()
        batch, more = self._claims.claim(capacity)
        self.progress_at = time.monotonic()
        if more:
            self.woken.set()
        if not batch and not capacity.is_retry_allowed:
            self._done.pause_seconds = capacity.wait_seconds
        delays = TRIGGER_DELAYS.labels(reason)
        for row in batch:
            if row.unclaimed_seconds is not None:
                delays.observe(row.unclaimed_seconds)
            row.deadline_at = claimed_at + settings.LEASE_SECONDS - self.send_timeout_seconds
            row.should_stop = should_stop
            if (profile := shops.get(row.profile)) is not None:
                row.account = profile.account  # the sending threads read no table
        return batch

    def screen(self, batch: Sequence[EmailNotification]) -> Mapping[uuid.UUID, Outcome]:
        """Return the outcomes of claimed rows that must not be sent, and set the `charge` of the others."""
        return screen(batch, neighbours=self.neighbours)

    def _screen(self, batch: list[EmailNotification]) -> None:
        """Settle claimed rows that must not be sent, and keep the others. On an error, give all back."""
        if not batch:
            return
        self._done.claimed += len(batch)
        outcomes: Mapping[uuid.UUID, Outcome] = {row.id: NOT_TRIED for row in batch}
        try:
            log_changes(batch)
            outcomes = self.screen(batch)
        finally:
            for row in sorted(batch, key=attrgetter("is_sent_alone")):
                if row.id in outcomes:
                    self._unsettled.add(row, outcomes[row.id])
                else:
                    self._claimed.append(row)

    def _give_back(self) -> None:
        while self._claimed:
            self._unsettled.add(self._claimed.popleft(), NOT_TRIED)

    # --- send ---
    def send(self, row: EmailNotification) -> Outcome:
        """Hand a row to a provider, in a thread of the pool."""
        return send(
            row,
            gate=self.gate,
            neighbours=self.neighbours,
            pause=self.stopping.wait,
            span=self.drain_span,
        )

    def _start_sends(self) -> None:
        while self._claimed and self._in_flight.has_room(is_alone=self._claimed[0].is_sent_alone):
            self._start(self._claimed.popleft())

    def _start(self, row: EmailNotification) -> None:
        """Begin a send if it can end within its lease. Settle all other rows before a row is sent alone."""
        if row.is_sent_alone:  # it may kill the process, and would then lose the other claims
            if self._claimed:
                self._give_back()
                self.woken.set()
            self._settle(at_once=True)
        if time.monotonic() > row.deadline_at:
            self._unsettled.add(row, NOT_TRIED)
        else:
            self._in_flight.start(
                row, send=self.send, pool=self.pool, timeout_seconds=self.send_timeout_seconds
            )

    def _collect(self) -> None:
        if finished := self._in_flight.collect(seconds=SETTLE_SECONDS):
            self._unsettled.add(*finished)

    # --- settle ---
    def _settle(self, *, at_once: bool = False, give_up_at: float = math.inf) -> None:
        """Write the outcomes that are due to be written. If no send is in flight, write all."""
        ended = self._unsettled.take_due(at_once=at_once or not self._in_flight)
        if not ended:
            return
        until = min(time.monotonic() + settings.LEASE_SECONDS, give_up_at)
        changes = settle_until(ended=ended, until=until)
        if changes:
            self.progress_at = time.monotonic()
        self._done.settled += len(changes)
        for row in changes:
            if row.wait_seconds is not None:
                self._note_due(row.wait_seconds)
            elif row.status in DUE_STATES:  # given back, so it is due at its old place in the queue
                self._note_due(0.0)
                self.lookback.forget()
        log_changes(changes)
        suppress_refused(changes)

    def _note_due(self, seconds: float) -> None:
        known = self._done.next_due_seconds
        self._done.next_due_seconds = seconds if known is None else min(known, seconds)

    def _finish(self, should_stop: Callable[[], bool]) -> None:
        """Give back rows whose send has not begun, and settle the sends in flight.

        Leave late sends to the next run. If the process stops, wait for them until the leases of all claims
        have expired.
        """
        give_up_at = time.monotonic() + settings.LEASE_SECONDS
        self._give_back()
        while (
            len(self._unsettled)
            or self._in_flight.is_awaited
            or (self._in_flight and should_stop() and time.monotonic() < give_up_at)
        ):
            health.beat("drain")
            self._collect()
            self._settle(give_up_at=give_up_at)
        if self._in_flight:
            log.error("sends left behind, the next drain collects them", count=len(self._in_flight))
            self._note_due(SHORT_PAUSE_SECONDS)


_drain = Drain()


def current() -> Drain:
    return _drain


def gate() -> Gate:
    """Return this process's circuit breakers and rate limit."""
    return _drain.gate


def start_anew() -> None:
    """Discard the state, after a fork or a change of settings (tests)."""
    global _drain
    _drain = Drain()


os.register_at_fork(after_in_child=start_anew)
