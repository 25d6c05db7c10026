"""The sends that a drain has begun and not collected. Each runs in a thread and uses no database."""

from __future__ import annotations

import queue
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Executor

import structlog
from django.conf import settings

from notifications.models import EmailNotification
from notifications.states.outcomes import Outcome, Verdict

log = structlog.get_logger(__name__)

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
