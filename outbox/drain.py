"""The drain of e-mails: claim those that are due, send them in threads, and write the outcomes.

A process has one drain. One thread at a time claims and settles; the threads of `pool` send, and use no
database. A late send (a provider that hangs) keeps its thread and its claim until it ends, and a later run
collects it. Any number of threads and processes may call the functions of this module at any time.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from operator import attrgetter

import structlog
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, InterfaceError, OperationalError, connections
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind

from notifications.changes import age
from notifications.changes.settle import settle, take_back
from notifications.log import EmailChange
from notifications.states.claimed import Claimed
from notifications.states.outcomes import Outcome, Verdict
from notifications.states.transitions import DUE_STATES
from notifications.suppressions import suppress_refused
from notifications.wake import Reason
from outbox.attempt import attempt, compute_send_timeout, fit_into_lease
from outbox.claim import Lookback, claim_batch, next_due_in, recover
from outbox.gate.breaker import Rules
from outbox.gate.gate import Capacity, Gate
from outbox.metrics import POLLS, TRIGGER_DELAYS
from outbox.refusals import Refusals
from outbox.screen import screen as screen_claimed
from runtime.models import Heartbeat
from runtime.telemetry import health, tracing

log = structlog.get_logger(__name__)

#: How long one run claims before it returns, so that the worker can run other tasks.
DRAIN_SECONDS = 30.0
#: Outcomes are written after so many or after so long, so that a crash doubles few e-mails.
SETTLE_ROWS, SETTLE_SECONDS = 20, 0.1
#: The longest wait for capacity inside a run. After so long, a caller tries again to claim a due row that
#: another session has locked.
SHORT_PAUSE_SECONDS = 1.0
#: Seconds between the untried e-mails that an open breaker lets through.
UNTRIED_SECONDS = 5.0
#: The heartbeat of polls.
POLL = "poll"
RECOVER_BATCH = 500
#: The outcome of a claimed e-mail that is given back.
NOT_TRIED = Outcome(Verdict.RETURNED)


@dataclasses.dataclass(slots=True)
class DrainResult:
    """The result of a run, and the time of the next one."""

    claimed: int = 0
    settled: int = 0
    #: Due e-mails are left: call again.
    has_more: bool = False
    #: How long to wait before the next run.
    pause_seconds: float = 0.0
    #: Until the first e-mail is due that the run knows of; None if it knows of none.
    next_due_seconds: float | None = None

    def note_due(self, seconds: float | None) -> None:
        if seconds is not None and (self.next_due_seconds is None or seconds < self.next_due_seconds):
            self.next_due_seconds = seconds


def read_rules() -> Rules:
    """Return the rules of the circuit breakers, as the settings say."""
    every = settings.BREAKER_OPEN_SECONDS
    return Rules(untried_every_seconds=min(UNTRIED_SECONDS, every), waiting_every_seconds=every)


class Drain:
    """The drain of one process. The next run collects the sends that a run leaves in flight.

    The pool and the gate are created at their first use, with the settings of that moment. Tests pass their
    own steps.
    """

    def __init__(
        self,
        *,
        send: Callable[[Claimed], Outcome] | None = None,
        screen: Callable[[Sequence[Claimed]], Mapping[uuid.UUID, Outcome]] | None = None,
        capacity: Callable[[], Capacity] | None = None,
    ) -> None:
        self.send, self.screen, self.capacity = (
            send or self._attempt,
            screen or screen_claimed,
            capacity or self._ask_capacity,
        )
        #: Held by the thread that runs the drain.
        self.running = threading.Lock()
        self.stopping = threading.Event()
        #: Set while due e-mails may exist that no claim has seen.
        self.woken = threading.Event()
        #: The first reason since the last claim.
        self.reason = Reason.POLL
        self.lookback = Lookback()
        self.swept_to = age.START  # where the poll's next sweep of old e-mails begins
        self.refusals = Refusals()
        self.span: Span = INVALID_SPAN  # of the latest run
        #: When the database last answered this drain (monotonic), which proves that the drain is not stuck.
        self.progress_at = -math.inf
        #: Claimed, and their send not begun. Those with a last chance come last.
        self._waiting: deque[Claimed] = deque()
        #: The sends, and when each is late (monotonic).
        self._in_flight: dict[Claimed, float] = {}
        self._last_chance: Claimed | None = None  # the latest that was sent alone
        #: What the sending threads report, and None for each wake-up.
        self._outcomes: queue.SimpleQueue[tuple[Claimed, Outcome] | None] = queue.SimpleQueue()
        self._unsettled: list[tuple[Claimed, Outcome]] = []
        self._settle_at = 0.0

    @functools.cached_property
    def pool(self) -> Executor:
        """The sending threads, each with its own provider connections."""
        return ThreadPoolExecutor(settings.EMAIL_CONCURRENCY, thread_name_prefix="send")

    @functools.cached_property
    def gate(self) -> Gate:
        """The circuit breakers and the shared rate limit."""
        return Gate(
            providers=settings.EMAIL_PROVIDERS,
            url=settings.REDIS_URL,
            rate=settings.EMAIL_RATE_LIMIT,
            burst=max(1.0, settings.EMAIL_RATE_LIMIT / 20),
            rules=read_rules(),
        )

    @functools.cached_property
    def send_timeout_seconds(self) -> float:
        """The longest duration of one send. None begins with less than that left of its lease."""
        return compute_send_timeout()

    def wake(self, reason: Reason = Reason.POLL) -> None:
        """Make the current run claim again at once. Any thread may call this."""
        if not self.woken.is_set():
            self.reason = reason
        self.woken.set()
        self._outcomes.put(None)

    def run(self, *, seconds: float) -> DrainResult:
        """Claim, screen, send and settle until nothing is due, time is over, or the process stops.

        Then give back the e-mails whose send has not begun. If the process stops, also wait for every send:
        no other run follows. If a claim or a screening fails, settle the sends in flight and raise its error.
        """
        report, ends_at = DrainResult(), time.monotonic() + seconds
        self.woken.set()
        try:
            while self._has_work() and not (
                self.stopping.is_set() or report.pause_seconds or time.monotonic() >= ends_at
            ):
                health.beat("drain")
                if capacity := self._capacity_to_claim(report):
                    self._claim(capacity, report)
                self._start_sends(report)
                self._wait_for_outcome()
                self._settle(report)
        except Exception:
            self._finish(report)  # the outcomes first: they are facts
            connections[DEFAULT_DB_ALIAS].close()
            raise
        else:
            self._finish(report)
        finally:
            health.end("drain")
        report.has_more = self.woken.is_set() and not report.pause_seconds
        return report

    def _has_work(self) -> bool:
        return bool(self.woken.is_set() or self._waiting or self._unsettled or self._awaits_outcome())

    # --- claim ---
    def _ask_capacity(self) -> Capacity:
        return self.gate.capacity(batch=settings.POLL_BATCH_SIZE, horizon_seconds=fit_into_lease(1.0))

    def _capacity_to_claim(self, report: DrainResult) -> Capacity | None:
        """Return how many to claim now, or None: all are claimed, no thread is free, or the gate has none."""
        if self._count_late() >= settings.EMAIL_CONCURRENCY:
            report.pause_seconds = SHORT_PAUSE_SECONDS
        if self._waiting or not self.woken.is_set() or not self._has_room():
            return None
        capacity = self.capacity()
        if capacity.rows:
            return capacity
        if capacity.wait_seconds > SHORT_PAUSE_SECONDS:
            report.pause_seconds = capacity.wait_seconds
        elif not self._in_flight:
            time.sleep(min(capacity.wait_seconds, SETTLE_SECONDS))
        return None

    def _claim(self, capacity: Capacity, report: DrainResult) -> None:
        """Claim, and screen what was claimed: end what must not be sent, and let the others wait."""
        claimed_at, reason = time.monotonic(), self.reason
        self.woken.clear()
        batch, has_more = claim_batch(capacity, self.lookback)
        self.progress_at = time.monotonic()
        if has_more:
            self.woken.set()
        if not batch:
            if not capacity.is_retry_allowed:
                report.pause_seconds = capacity.wait_seconds
            return
        report.claimed += len(batch)
        outcomes: Mapping[uuid.UUID, Outcome] = {email.id: NOT_TRIED for email in batch}
        try:
            delays = TRIGGER_DELAYS.labels(reason)
            for email in batch:
                email.deadline_at = claimed_at + settings.LEASE_SECONDS - self.send_timeout_seconds
                if email.stored_seconds is not None:
                    delays.observe(email.stored_seconds)
            outcomes = self.screen(batch)
        finally:  # an error gives all back
            for email in sorted(batch, key=attrgetter("is_last_chance")):
                if email.id in outcomes:
                    self._end(email, outcomes[email.id])
                else:
                    self._waiting.append(email)

    def _give_back(self) -> None:
        while self._waiting:
            self._end(self._waiting.popleft(), NOT_TRIED)

    # --- send ---
    def _count_late(self) -> int:
        now = time.monotonic()
        return sum(now > late_at for late_at in self._in_flight.values())

    def _has_room(self, *, is_last_chance: bool = False) -> bool:
        """Return whether another send may begin.

        A last chance is sent alone: it waits for all sends, and all others wait for its end. Neither waits
        for a late send, which may hang for ever.
        """
        if len(self._in_flight) >= settings.EMAIL_CONCURRENCY:
            return False
        if is_last_chance:
            return self._count_late() == len(self._in_flight)
        alone_until = self._in_flight.get(self._last_chance) if self._last_chance else None
        return alone_until is None or time.monotonic() > alone_until

    def _start_sends(self, report: DrainResult) -> None:
        """Begin the sends that have a thread and can end within their lease."""
        while self._waiting and self._has_room(is_last_chance=self._waiting[0].is_last_chance):
            email = self._waiting.popleft()
            if email.is_last_chance:  # it may kill the process, which would then lose the other claims
                self._last_chance = email
                if self._waiting:
                    self._give_back()
                    self.woken.set()
                self._settle(report, at_once=True)
            if time.monotonic() > email.deadline_at:
                self._end(email, NOT_TRIED)
            else:
                self._in_flight[email] = time.monotonic() + self.send_timeout_seconds
                self.pool.submit(self._send, email)

    def _send(self, email: Claimed) -> None:
        """Send in a thread of the pool, and report an outcome even if the send raises an error."""
        try:
            outcome = self.send(email)
        except BaseException as error:  # also SystemExit: without an outcome it would stay in flight for ever
            log.exception("sender failed", id=str(email.id))
            code, text = type(error).__name__, str(error)
            outcome = Outcome(Verdict.AMBIGUOUS, code=code, text=text)
        self._outcomes.put((email, outcome))

    def _attempt(self, email: Claimed) -> Outcome:
        return attempt(
            email,
            gate=self.gate,
            refusals=self.refusals,
            stopping=self.stopping,
            span=self.span,
        )

    def _awaits_outcome(self) -> bool:
        """Return whether an outcome has come, or a send is not late yet."""
        return not self._outcomes.empty() or self._count_late() < len(self._in_flight)

    def _wait_for_outcome(self) -> None:
        """Wait for the next outcome, for 0.1 s at most. A wake-up ends the wait."""
        if not self._in_flight and self._outcomes.empty():
            return
        try:
            ended = self._outcomes.get(timeout=SETTLE_SECONDS)
        except queue.Empty:
            return
        if ended is not None:
            self._in_flight.pop(ended[0], None)
            self._end(*ended)

    # --- settle ---
    def _end(self, email: Claimed, outcome: Outcome) -> None:
        """Keep an outcome until it is written."""
        if not self._unsettled:
            self._settle_at = time.monotonic() + SETTLE_SECONDS
        self._unsettled.append((email, outcome))

    def _settle(self, report: DrainResult, *, at_once: bool = False, give_up_at: float = math.inf) -> None:
        """Write the outcomes if they are many or old, or no send is in flight."""
        is_due = len(self._unsettled) >= SETTLE_ROWS or time.monotonic() > self._settle_at
        if not self._unsettled or not (is_due or at_once or not self._in_flight):
            return
        ended = [(email, self.refusals.judge_again(outcome)) for email, outcome in self._unsettled]
        self._unsettled = []
        changes = _settle_until(ended, until=min(time.monotonic() + settings.LEASE_SECONDS, give_up_at))
        if changes:
            self.progress_at = time.monotonic()
        report.settled += len(changes)
        for change in changes:
            report.note_due(change.wait_seconds)
            if change.wait_seconds is None and change.status in DUE_STATES:
                report.note_due(0.0)  # given back, so it is due at its old place in the queue
                self.lookback.forget()
        if any(change.is_awaited for change in changes):
            self.woken.set()  # the e-mails that waited for these may be due
        suppress_refused(changes)
        for run in self.refusals.proved():  # again after an error of the database
            taken_back = take_back(provider=run.provider, since=run.began_at, is_same=run.has_words)
            self.refusals.ended(run)
            log.error(
                "provider refuses the account",
                provider=run.provider,
                error=run.words,
                taken_back=len(taken_back),
            )
            self.woken.set()
            self.lookback.forget()

    def _finish(self, report: DrainResult) -> None:
        """Give back the e-mails whose send has not begun, and settle the sends in flight.

        Leave late sends to the next run. If the process stops, wait for them until the leases of all claims
        have expired.
        """
        give_up_at = time.monotonic() + settings.LEASE_SECONDS
        self._give_back()
        while (
            self._unsettled
            or self._awaits_outcome()
            or (self._in_flight and self.stopping.is_set() and time.monotonic() < give_up_at)
        ):
            health.beat("drain")
            self._wait_for_outcome()
            self._settle(report, give_up_at=give_up_at)
        if self._in_flight:
            log.error("sends left behind, the next drain collects them", count=len(self._in_flight))
            report.note_due(SHORT_PAUSE_SECONDS)


def _settle_until(ended: Sequence[tuple[Claimed, Outcome]], *, until: float) -> list[EmailChange]:
    """Settle, and try again while the database is away, until `until` (monotonic seconds).

    If one outcome cannot be written, log it, leave its e-mail to the lease, and write the others.
    """
    wait = 0.05
    while True:
        health.beat("drain")
        try:
            with tracing.span("settle", kind=SpanKind.CLIENT) as span:
                span.set_attribute("db.system.name", "postgresql")
                changes = settle(ended)
        except (OperationalError, InterfaceError) as error:
            connections[DEFAULT_DB_ALIAS].close()
            if time.monotonic() + wait > until:
                log.error("outcomes lost, their leases will expire", count=len(ended), error=str(error))
                return []
            log.warning("settling failed, trying again", error=str(error), seconds=wait)
            time.sleep(wait)
            wait = min(wait * 2, 2.0)
        except Exception:
            if len(ended) == 1:
                log.exception("an outcome cannot be written", id=str(ended[0][0].id))
                return []
            return [change for pair in ended for change in _settle_until([pair], until=until)]
        else:
            changed = {change.id for change in changes}
            for email, outcome in ended:
                # If an acceptance changed nothing, a webhook had reported it before.
                if email.id not in changed and outcome.verdict is not Verdict.ACCEPTED:
                    verdict = str(outcome.verdict)
                    log.warning("lease lost, outcome dropped", id=str(email.id), outcome=verdict)
            return changes


_drain = Drain()


def current() -> Drain:
    """Return the drain of this process."""
    return _drain


def gate() -> Gate:
    """Return this process's circuit breakers and rate limit."""
    return _drain.gate


def reset() -> None:
    """Discard the state, after a fork or a change of settings (tests)."""
    global _drain
    _drain = Drain()


os.register_at_fork(after_in_child=reset)


def drain_emails(reason: Reason = Reason.POLL) -> DrainResult | None:
    """Send due e-mails. Return None if a drain of this process already runs or the process is stopping.

    A drain that already runs claims once more. Call again if `has_more`.
    """
    drain = current()
    drain.wake(reason)
    report: DrainResult | None = None
    while drain.woken.is_set() and not drain.stopping.is_set():
        if not drain.running.acquire(blocking=False):
            break
        try:
            with tracing.span("drain") as span:
                drain.span = span
                report = drain.run(seconds=DRAIN_SECONDS)
                span.set_attribute("orderpost.settled", report.settled)
        finally:
            drain.gate.rest()
            drain.running.release()
        if report.has_more or report.pause_seconds:
            break
    return report


def drain_due(reason: Reason = Reason.POLL) -> DrainResult | None:
    """Drain, and set `next_due_seconds` to the seconds until the earliest waiting e-mail is due."""
    lookback = current().lookback
    if (report := drain_emails(reason)) is not None:
        seconds = lookback.seconds(now=time.monotonic())
        waiting = next_due_in(lookback_seconds=seconds)
        if waiting is not None and waiting <= 0.0:  # another session locks it, or it was inserted just now
            waiting = SHORT_PAUSE_SECONDS
        # The run knows an earlier time if it gave e-mails back or left sends in flight.
        report.note_due(waiting)
    return report


@POLLS.time()
def poll() -> DrainResult | None:
    """Recover expired claims, set old e-mails aside, and drain. Beat runs it every `POLL_INTERVAL` seconds.

    The first claim reads every due row. Write the heartbeat of polls if the process's drain made progress.
    """
    drain = current()
    while len(recover(lease_seconds=settings.LEASE_SECONDS, limit=RECOVER_BATCH)) == RECOVER_BATCH:
        pass
    _, drain.swept_to = age.sweep(after=drain.swept_to)
    drain.lookback.forget()
    report = drain_due()
    is_moving = drain.progress_at > time.monotonic() - settings.POLL_INTERVAL
    if report is not None or is_moving:
        Heartbeat.beat(name=POLL)
    return report


def stop() -> None:
    """Make the process's drain give back the e-mails that it has not begun. Start no other drain."""
    current().stopping.set()


def finish() -> None:
    """Stop, and wait until every e-mail that this process claimed is settled or given back.

    Wait for the drain of any thread; Python does not wait for the timer's. Then collect the sends that an
    earlier run left in flight: no other run follows.
    """
    drain = current()
    drain.stopping.set()
    with drain.running:
        drain.run(seconds=0.0)
