"""The generic loop: claim due rows, send them in threads, write the outcomes, until no row is due.

The loop knows neither what is sent nor how: an app brings a `Sender`. Sends run in threads of `pool` and
touch no database; claiming and settling happen in the calling thread, one for each process. A send that hangs
occupies one thread; a row that is sent alone also stops claims until it ends. Run by
notifications/delivery/drain.py.
"""

from __future__ import annotations

import math
import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Generic, TypeVar

import structlog
from django.db import connections

from outbox.core import health, instruments
from outbox.delivery.attempts import goes_alone
from outbox.delivery.changes import Change, Settlement
from outbox.delivery.deliverable import Deliverable
from outbox.delivery.gate import Capacity
from outbox.delivery.lookback import Lookback
from outbox.delivery.outcomes import DUE, Outcome, Status, Verdict
from outbox.delivery.queryset import DeliverableQuerySet
from outbox.delivery.sender import Drained, Limits, Sender
from outbox.delivery.settle_until import settle_until

log = structlog.get_logger(__name__)

SETTLE_ROWS = 20
SETTLE_SECONDS = 0.1
#: A drain waits so long for capacity itself; it ends before a longer wait.
SHORT_PAUSE = 1.0

Row = TypeVar("Row", bound=Deliverable)


class Drain(Generic[Row]):
    """The drain of one process. Sends that a run leaves in flight are collected by the next."""

    def __init__(
        self, *, rows: DeliverableQuerySet[Row], sender: Sender[Row], pool: Executor, limits: Limits
    ) -> None:
        self._rows, self._sender, self._pool, self._limits = rows, sender, pool, limits
        self.woken = threading.Event()
        #: When the database last did something for this drain (monotonic): proof that it is not stuck.
        self.progress_at = -math.inf
        self._in_flight: dict[uuid.UUID, float] = {}  # id -> when waiting for it stops being of use
        #: Outcomes, and None for each wake-up, which ends the wait for an outcome.
        self._finished: queue.SimpleQueue[tuple[Row, Outcome] | None] = queue.SimpleQueue()
        self._claimed: deque[Row] = deque()
        self._alone: deque[Row] = deque()  # claimed, to be sent with nothing else in flight
        self._exclusive: uuid.UUID | None = None  # the one of them that was started last
        self._unsettled: list[Settlement] = []
        self._settle_by = 0.0
        self._fresh_credit = 0.0
        self.lookback = Lookback()
        table = rows.model._meta.db_table
        self._count_claimed = instruments.CLAIMED.labels(table)
        self._run_seconds = instruments.DRAINS.labels(table)
        self._begin(seconds=0.0, should_stop=lambda: False)

    def wake(self) -> None:
        """Have a run that is under way claim once more, at once; from any thread."""
        self.woken.set()
        self._finished.put(None)

    def _begin(self, *, seconds: float, should_stop: Callable[[], bool]) -> None:
        """Forget the run before."""
        self._should_stop = should_stop
        self._give_up_at = math.inf  # monotonic: until then a stopping process tries to settle
        self._done = Drained()
        self._failed: Exception | None = None
        self._looking, self._closing = True, False
        self._ends = time.monotonic() + seconds

    def run(self, *, seconds: float, should_stop: Callable[[], bool] = lambda: False) -> Drained:
        """Send what is due and write what became of it.

        No row is claimed after `seconds`, or once `should_stop`; what was claimed and not yet started is then
        given back. Once `should_stop`, the run also waits for every send, because no other run follows. A
        trigger calls `wake` to have a running drain look again. Outcomes are written after 20 rows or 0.1 s,
        so that a crash causes few duplicates. Raises the error of a failed claim or screening, after settling
        what is in flight.
        """
        self._begin(seconds=seconds, should_stop=should_stop)
        try:
            with self._run_seconds.time():
                self._run()
        finally:
            health.end("drain")
        if self._failed:
            connections[self._rows.db].close()
            raise self._failed
        self._done.more = self._closing and self._looking and not self._done.pause
        return self._done

    def _run(self) -> None:
        while True:
            health.beat("drain")
            if self._all_slots_hang():
                self._done.pause = SHORT_PAUSE
            stopping = self._should_stop()
            if stopping:
                self._give_up_at = min(self._give_up_at, time.monotonic() + self._limits.lease)
            self._closing = bool(
                stopping or self._failed or self._done.pause or time.monotonic() >= self._ends
            )
            self._notice_wake_up()
            if self._closing:
                self._give_back()
            elif self._looking:
                self._claim()
            self._start_sends()
            self._collect()
            self._settle()
            if self._is_over():
                return

    def _notice_wake_up(self) -> None:
        if self.woken.is_set():
            self.woken.clear()
            self._looking = True

    def _is_over(self) -> bool:
        if self._claimed or self._alone or self._unsettled or (self._looking and not self._closing):
            return False
        late = [id for id, until in self._in_flight.items() if time.monotonic() > until]
        if len(late) < len(self._in_flight) or not self._finished.empty():
            return False
        if late and self._should_stop() and time.monotonic() < self._give_up_at:
            return False
        if late:
            log.error("sends left behind, the next drain collects them", count=len(late))
            self._wake_in(SHORT_PAUSE)
        return True

    def _wake_in(self, seconds: float) -> None:
        known = self._done.next_due
        self._done.next_due = seconds if known is None else min(known, seconds)

    # --- claim ---
    def _claim(self) -> None:
        full = len(self._in_flight) >= self._limits.concurrency
        if self._claimed or self._alone or full or self._exclusive in self._in_flight:
            return
        capacity = self._sender.capacity()
        if capacity.rows:
            try:
                self._take(self._claim_rows(capacity), capacity)
            except Exception as error:  # noqa: BLE001 - raised again when everything is settled
                self._failed = error
        elif capacity.wait > SHORT_PAUSE:
            self._done.pause = capacity.wait
        elif not self._in_flight:
            time.sleep(min(capacity.wait, SETTLE_SECONDS))

    def _all_slots_hang(self) -> bool:
        now = time.monotonic()
        late = sum(now > until for until in self._in_flight.values())
        return late >= self._limits.concurrency

    def _claim_rows(self, capacity: Capacity) -> list[Row]:
        """Claim, and note the moment after which a row may no longer be started."""
        claimed_at = time.monotonic()
        batch: list[Row] = []
        if capacity.untried:
            batch = self._rows.claim_untried()
        if not batch and capacity.waiting:
            self._fresh_credit += capacity.rows / 4
            fresh = min(int(self._fresh_credit), capacity.rows)
            self._fresh_credit -= fresh
            lookback = self.lookback.seconds(now=claimed_at)
            batch = self._rows.claim(limit=capacity.rows, fresh=fresh, lookback=lookback)
            # The part for first attempts stays empty when only retries are due: that is not the end.
            full = len(batch) >= (capacity.rows - fresh if lookback is None else capacity.rows)
            self._looking = bool(batch) and full
            if fresh < capacity.rows:  # the last of a full batch then is the last taken of the longest due
                self.lookback.looked(
                    whole=lookback is None,
                    began=claimed_at,
                    ended=time.monotonic(),
                    age=batch[-1].age if batch and full else 0.0,
                )
        else:
            self._looking = bool(batch)
        if not batch and not capacity.waiting:
            self._done.pause = capacity.wait
        self.progress_at = time.monotonic()
        for row in batch:
            row.deadline = claimed_at + self._limits.lease - self._limits.send_timeout
            row.should_stop = self._should_stop
        return batch

    def _take(self, batch: list[Row], capacity: Capacity) -> None:
        """Screen claimed rows: settle those that must not be sent, keep the others."""
        if not batch:
            return
        self._done.claimed += len(batch)
        self._count_claimed.inc(len(batch))
        screened: Mapping[uuid.UUID, Outcome] = {}
        try:
            self._sender.changed([Change(row, row.was, Status.PROCESSING) for row in batch])
            screened = self._sender.screen(batch)
        except Exception:
            screened = {row.id: Outcome(Verdict.RETURNED) for row in batch}
            raise
        finally:
            for row in batch:
                if (outcome := screened.get(row.id)) is not None:
                    self._to_settle(row, outcome)
                elif goes_alone(errors=row.errors, retry_count=row.retry_count, max_retries=row.max_retries):
                    self._alone.append(row)
                else:
                    self._claimed.append(row)

    def _give_back(self) -> None:
        for rows in (self._claimed, self._alone):
            while rows:
                self._to_settle(rows.popleft(), Outcome(Verdict.RETURNED))

    # --- send ---
    def _start_sends(self) -> None:
        while self._claimed and len(self._in_flight) < self._limits.concurrency:
            self._start(self._claimed.popleft())
        if self._alone and not self._in_flight:
            self._exclusive = self._alone[0].id
            self._start(self._alone.popleft())
            while self._alone:  # so that no other claim is lost with this one
                self._to_settle(self._alone.popleft(), Outcome(Verdict.RETURNED))
                self._looking = True
            self._settle(at_once=True)

    def _start(self, row: Row) -> None:
        if time.monotonic() > row.deadline:
            self._to_settle(row, Outcome(Verdict.RETURNED))
            return
        self._in_flight[row.id] = time.monotonic() + self._limits.send_timeout
        self._pool.submit(self._send, row)

    def _send(self, row: Row) -> None:
        """Send in a thread of the pool; whatever happens, the row's outcome is reported."""
        try:
            outcome = self._sender.send(row)
        except Exception as error:
            log.exception("sender failed", id=str(row.id))
            outcome = Outcome(Verdict.AMBIGUOUS, code=type(error).__name__, text=str(error), uses_retry=True)
        self._finished.put((row, outcome))

    # --- collect and settle ---
    def _collect(self) -> None:
        if not self._in_flight and self._finished.empty():
            return
        try:
            finished = self._finished.get(timeout=SETTLE_SECONDS)
        except queue.Empty:
            return
        if finished is None:
            return
        row, outcome = finished
        self._in_flight.pop(row.id, None)
        self._to_settle(row, outcome)

    def _to_settle(self, row: Row, outcome: Outcome) -> None:
        if not self._unsettled:
            self._settle_by = time.monotonic() + SETTLE_SECONDS
        self._unsettled.append(Settlement(row.id, outcome, row.claim_token, row.charge))

    def _settle(self, *, at_once: bool = False) -> None:
        due = at_once or not self._in_flight or time.monotonic() > self._settle_by
        if not self._unsettled or not (due or len(self._unsettled) >= SETTLE_ROWS):
            return
        settlements, self._unsettled = self._unsettled, []
        until = min(time.monotonic() + self._limits.lease, self._give_up_at)
        changes = settle_until(rows=self._rows, settlements=settlements, until=until)
        if changes:
            self.progress_at = time.monotonic()
        self._done.settled += len(changes)
        for change in changes:
            if change.wait is not None:
                self._wake_in(change.wait)
            elif change.now in DUE:  # it has its old place in the queue
                self.lookback.forget()
        self._sender.changed(changes)
