"""The sends that a drain has begun, and their outcomes until they are written.

Each send runs in a thread and uses no database. Writing outcomes continues after the database was away.
"""

from __future__ import annotations

import queue
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import structlog
from django.conf import settings
from django.db import InterfaceError, OperationalError, connections
from opentelemetry.trace import SpanKind

from notifications.models import EmailNotification
from notifications.states.outcomes import Outcome, Verdict
from runtime.telemetry import health, tracing

log = structlog.get_logger(__name__)

#: Outcomes are written after so many or after so long, so that a crash causes few duplicates.
SETTLE_ROWS = 20
SETTLE_SECONDS = 0.1
#: A row's id and its claim token.
ClaimKey = tuple[uuid.UUID, uuid.UUID | None]


class InFlight:
    """The sends of one drain. A late send keeps its thread."""

    def __init__(self) -> None:
        #: Monotonic seconds. The key is the claim, because a row may be claimed again while a send of it
        #: hangs.
        self._late_at: dict[ClaimKey, float] = {}
        self._alone: ClaimKey | None = None  # the last row that was sent alone
        #: Outcomes, and None for each call of `interrupt`.
        self._finished: queue.SimpleQueue[tuple[EmailNotification, Outcome] | None] = queue.SimpleQueue()

    def __len__(self) -> int:
        return len(self._late_at)

    @property
    def is_awaited(self) -> bool:
        """Whether to continue collecting, because an outcome has come or a send is not late yet."""
        return self._count_late() < len(self) or not self._finished.empty()

    @property
    def is_stuck(self) -> bool:
        """Whether late sends occupy every thread."""
        return self._count_late() >= settings.EMAIL_CONCURRENCY

    def _count_late(self) -> int:
        return sum(map(self._is_late, self._late_at))

    def _is_late(self, claim: ClaimKey) -> bool:
        return time.monotonic() > self._late_at[claim]

    def has_room(self, *, is_alone: bool = False) -> bool:
        """Return whether another send may begin.

        A row that is sent alone begins after all other sends, and no other begins until its send has ended.
        Neither waits for a late send, which may hang for ever.
        """
        if len(self) >= settings.EMAIL_CONCURRENCY:
            return False
        if is_alone:
            return self._count_late() == len(self)
        last = self._alone
        return last is None or last not in self._late_at or self._is_late(last)

    def start(
        self,
        row: EmailNotification,
        *,
        send: Callable[[EmailNotification], Outcome],
        pool: Executor,
        timeout_seconds: float,
    ) -> None:
        """Call `send` in a thread of the pool. The send is late after `timeout_seconds`."""
        if row.is_sent_alone:
            self._alone = _claim_of(row)
        self._late_at[_claim_of(row)] = time.monotonic() + timeout_seconds
        pool.submit(self._send, row, send)

    def _send(self, row: EmailNotification, send: Callable[[EmailNotification], Outcome]) -> None:
        """Send, and report an outcome even if the send raises an error."""
        try:
            outcome = send(row)
        except BaseException as error:  # also SystemExit: without an outcome it would stay in flight for ever
            log.exception("sender failed", id=str(row.id))
            outcome = Outcome(
                Verdict.AMBIGUOUS, code=type(error).__name__, text=str(error), has_used_retry=True
            )
        self._finished.put((row, outcome))

    def collect(self, *, seconds: float) -> tuple[EmailNotification, Outcome] | None:
        """Wait for the next outcome. Return None after `seconds`, when interrupted, or with no send left."""
        if not self._late_at and self._finished.empty():
            return None
        try:
            finished = self._finished.get(timeout=seconds)
        except queue.Empty:
            return None
        if finished is not None:
            self._late_at.pop(_claim_of(finished[0]), None)
        return finished

    def interrupt(self) -> None:
        """Make the current or the next `collect` return. Any thread may call this."""
        self._finished.put(None)


def _claim_of(row: EmailNotification) -> ClaimKey:
    return row.id, row.claim_token


class Unsettled:
    """The outcomes that wait, and the monotonic time at which they are due to be written."""

    def __init__(self) -> None:
        self._ended: list[tuple[EmailNotification, Outcome]] = []
        self._due_at = 0.0

    def __len__(self) -> int:
        return len(self._ended)

    def add(self, row: EmailNotification, outcome: Outcome) -> None:
        if not self._ended:
            self._due_at = time.monotonic() + SETTLE_SECONDS
        self._ended.append((row, outcome))

    def take_due(self, *, at_once: bool) -> list[tuple[EmailNotification, Outcome]]:
        """Return and forget all outcomes if they are due or `at_once` is true. Otherwise return none."""
        if not (at_once or len(self) >= SETTLE_ROWS or time.monotonic() > self._due_at):
            return []
        taken, self._ended = self._ended, []
        return taken


def settle_until(
    *, ended: Sequence[tuple[EmailNotification, Outcome]], until: float
) -> list[EmailNotification]:
    """Settle, and try again while the database is away, until `until` (monotonic seconds).

    Log a row that cannot be written and leave it to its lease, so that the others are written.
    """
    wait = 0.05
    while True:
        health.beat("drain")
        try:
            with tracing.span("settle", kind=SpanKind.CLIENT) as span:
                span.set_attribute("db.system.name", "postgresql")
                changes = EmailNotification.objects.settle(ended)
        except (OperationalError, InterfaceError) as error:
            connections[EmailNotification.objects.db].close()
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
            singly = [settle_until(ended=[one], until=until) for one in ended]
            return [change for changes in singly for change in changes]
        else:
            changed = {row.id for row in changes}
            for row, outcome in ended:
                if row.id not in changed:
                    log.warning("lease lost, outcome dropped", id=str(row.id), outcome=str(outcome.verdict))
            return changes
