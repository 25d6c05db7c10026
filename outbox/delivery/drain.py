"""The generic loop: claim due rows, send them in threads, write the outcomes, until no row is due.

An app brings a `Sender`, because the loop knows neither the payload nor the provider. The calling thread, one
in each process, claims and settles. Threads of `pool` send. notifications/delivery/drain.py runs the loop.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from operator import attrgetter
from typing import Generic, TypeVar

import structlog
from django.db import connections

from outbox.delivery.claims import Claims
from outbox.delivery.in_flight import InFlight
from outbox.delivery.lookback import Lookback
from outbox.delivery.rows.deliverable import Deliverable
from outbox.delivery.rows.outcomes import DUE_STATES, Outcome, Status, Verdict
from outbox.delivery.rows.queryset import DeliverableQuerySet
from outbox.delivery.rows.settlements import Transition
from outbox.delivery.sender import Drained, Limits, Sender
from outbox.delivery.unsettled import SETTLE_SECONDS, Unsettled, settle_until
from outbox.telemetry import health

log = structlog.get_logger(__name__)

#: A run waits at most so long for capacity, and returns before a longer wait. After so long, a caller tries
#: again to claim a due row that another session has locked.
SHORT_PAUSE_SECONDS = 1.0
#: The outcome of a claimed row that is given back.
NOT_TRIED = Outcome(Verdict.RETURNED)

Row = TypeVar("Row", bound=Deliverable)


class Drain(Generic[Row]):
    """The drain of one process. The next run collects the sends that a run leaves in flight."""

    def __init__(
        self, *, rows: DeliverableQuerySet[Row], sender: Sender[Row], pool: Executor, limits: Limits
    ) -> None:
        self._rows, self._sender, self._limits = rows, sender, limits
        #: Set while due rows may exist that no claim has seen.
        self.woken = threading.Event()
        #: When the database last answered this drain (monotonic), which proves that the drain is not stuck.
        self.progress_at = -math.inf
        self._claims = Claims(rows)
        self._claimed: deque[Row] = deque()  # sends not begun; rows that are sent alone come last
        self._in_flight = InFlight(sender=sender, pool=pool, limits=limits)
        self._unsettled = Unsettled()
        self._done = Drained()

    @property
    def lookback(self) -> Lookback:
        """How far back the drain's next claim has to read."""
        return self._claims.lookback

    def wake(self) -> None:
        """Make the current run claim again at once. Any thread may call this."""
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
                self._claim(should_stop)
                self._start_sends()
                self._collect()
                self._settle()
        except Exception:
            self._finish(should_stop)
            connections[self._rows.db].close()
            raise
        self._finish(should_stop)

    def _is_busy(self) -> bool:
        return bool(
            self.woken.is_set() or self._claimed or self._in_flight.is_awaited or len(self._unsettled)
        )

    # --- claim ---
    def _claim(self, should_stop: Callable[[], bool]) -> None:
        """Claim and screen rows if rows may be due, a thread is free, and the sender has capacity."""
        if self._in_flight.is_stuck:
            self._done.pause_seconds = SHORT_PAUSE_SECONDS
        if self._claimed or not self.woken.is_set() or not self._in_flight.has_room():
            return
        capacity = self._sender.capacity()
        if not capacity.rows:
            if capacity.wait_seconds > SHORT_PAUSE_SECONDS:
                self._done.pause_seconds = capacity.wait_seconds
            elif not self._in_flight:
                time.sleep(min(capacity.wait_seconds, SETTLE_SECONDS))
            return
        claimed_at = time.monotonic()
        self.woken.clear()
        batch, more = self._claims.claim(capacity)
        self.progress_at = time.monotonic()
        if more:
            self.woken.set()
        if batch:
            for row in batch:
                row.deadline_at = claimed_at + self._limits.lease_seconds - self._limits.send_timeout_seconds
                row.should_stop = should_stop
            self._screen(batch)
        elif not capacity.is_retry_allowed:
            self._done.pause_seconds = capacity.wait_seconds

    def _screen(self, batch: list[Row]) -> None:
        """Settle claimed rows that must not be sent, and keep the others. On an error, give all back."""
        self._done.claimed += len(batch)
        outcomes: Mapping[uuid.UUID, Outcome] = {row.id: NOT_TRIED for row in batch}
        try:
            self._sender.changed([Transition(row, row.was, Status.PROCESSING) for row in batch])
            outcomes = self._sender.screen(batch)
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
    def _start_sends(self) -> None:
        while self._claimed and self._in_flight.has_room(is_alone=self._claimed[0].is_sent_alone):
            self._start(self._claimed.popleft())

    def _start(self, row: Row) -> None:
        """Begin a send if it can end within its lease. Settle all other rows before a row is sent alone."""
        if row.is_sent_alone:  # it may kill the process, and would then lose the other claims
            if self._claimed:
                self._give_back()
                self.woken.set()
            self._settle(at_once=True)
        if time.monotonic() > row.deadline_at:
            self._unsettled.add(row, NOT_TRIED)
        else:
            self._in_flight.start(row)

    def _collect(self) -> None:
        if finished := self._in_flight.collect(seconds=SETTLE_SECONDS):
            self._unsettled.add(*finished)

    # --- settle ---
    def _settle(self, *, at_once: bool = False, give_up_at: float = math.inf) -> None:
        """Write the outcomes that are due to be written. If no send is in flight, write all."""
        settlements = self._unsettled.take_due(at_once=at_once or not self._in_flight)
        if not settlements:
            return
        until = min(time.monotonic() + self._limits.lease_seconds, give_up_at)
        changes = settle_until(rows=self._rows, settlements=settlements, until=until)
        if changes:
            self.progress_at = time.monotonic()
        self._done.settled += len(changes)
        for change in changes:
            if change.wait_seconds is not None:
                self._note_due(change.wait_seconds)
            elif change.now in DUE_STATES:  # given back, so it is due at its old place in the queue
                self._note_due(0.0)
                self.lookback.forget()
        self._sender.changed(changes)

    def _note_due(self, seconds: float) -> None:
        known = self._done.next_due_seconds
        self._done.next_due_seconds = seconds if known is None else min(known, seconds)

    def _finish(self, should_stop: Callable[[], bool]) -> None:
        """Give back rows whose send has not begun, and settle the sends in flight.

        Leave late sends to the next run. If the process stops, wait for them until the leases of all claims
        have expired.
        """
        give_up_at = time.monotonic() + self._limits.lease_seconds
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
