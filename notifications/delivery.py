"""Getting e-mails out: the one drain of this process, the poll, and the log of every change of state.

Every trigger ends in `drain_emails` or `poll`: the Celery tasks, `manage.py drain_outbox`, a person's
resend. Both may be called at any time, by any number of threads and processes at once.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog
from django.conf import settings

from notifications.models import EmailNotification
from notifications.providers import PROVIDERS
from outbox.deliverable import Change, Status
from outbox.drain import Drained, drain
from outbox.models import Heartbeat
from outbox.outcomes import Outcome

log = structlog.get_logger(__name__)

#: How long one drain claims before it makes room for the worker's other tasks.
DRAIN_SECONDS = 30.0
POLL = "poll"
RECOVER_BATCH = 500


class _Process:
    """What a process keeps between drains; made anew after a fork."""

    def __init__(self) -> None:
        self.busy = threading.Lock()
        self.again = threading.Event()
        self.stopping = threading.Event()
        self.resume_at = 0.0  # monotonic; until then a provider asked us to wait
        self._pool: ThreadPoolExecutor | None = None

    @property
    def pool(self) -> ThreadPoolExecutor:
        """The sending threads, each with its own provider connection."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(settings.EMAIL_CONCURRENCY, thread_name_prefix="send")
        return self._pool


_process = _Process()


def _forget_after_fork() -> None:
    global _process
    _process = _Process()


os.register_at_fork(after_in_child=_forget_after_fork)


def send(mail: EmailNotification) -> Outcome:
    """This function will hand an e-mail to the preferred provider; it does not raise."""
    return PROVIDERS[settings.EMAIL_PROVIDERS[0]].send(mail)


def drain_emails() -> Drained | None:
    """This function will send all that is due, unless a drain of this process already does.

    Then that one looks once more before it ends, and this call returns None at once; likewise while the
    provider asked for a pause or the process stops. `more` in the answer: call again.
    """
    process = _process
    process.again.set()
    done: Drained | None = None
    while process.again.is_set() and not process.stopping.is_set():
        if time.monotonic() < process.resume_at or not process.busy.acquire(blocking=False):
            break
        try:
            process.again.clear()
            done = _drain(process)
            process.resume_at = time.monotonic() + done.pause
        finally:
            process.busy.release()
        if done.more:
            break
    return done


def _drain(process: _Process) -> Drained:
    def look_again() -> bool:
        asked = process.again.is_set()
        process.again.clear()
        return asked

    return drain(
        rows=EmailNotification.objects.all(),
        send=send,
        pool=process.pool,
        concurrency=settings.EMAIL_CONCURRENCY,
        batch_size=settings.POLL_BATCH_SIZE,
        lease=settings.LEASE_SECONDS,
        send_timeout=settings.EMAIL_CONNECT_TIMEOUT + settings.EMAIL_READ_TIMEOUT,
        seconds=DRAIN_SECONDS,
        should_stop=process.stopping.is_set,
        look_again=look_again,
        on_changes=log_changes,
    )


def poll(*, record: bool = True) -> Drained | None:
    """This function will take back expired claims and drain: what beat does every `POLL_INTERVAL`.

    `record` notes that a poll ran, which keeps the standby quiet; the standby itself does not note its own.
    """
    if record:
        Heartbeat.beat(name=POLL)
    while changes := EmailNotification.objects.recover(lease=settings.LEASE_SECONDS, limit=RECOVER_BATCH):
        log_changes(changes)
        if len(changes) < RECOVER_BATCH:
            break
    return drain_emails()


def stop() -> None:
    """This function will have the process's drain give back what it has not begun, and start no other."""
    _process.stopping.set()


def log_changes(changes: Sequence[Change]) -> None:
    """This function will write one log line for each change of state, worse ones louder."""
    for change in changes:
        mail = change.row
        assert isinstance(mail, EmailNotification)
        line = {
            "notification_id": str(mail.id),
            "order_id": str(mail.order_id),
            "event_type": mail.event_type,
            "correlation_id": mail.correlation_id,
            "recipient": mail.recipient_email,
            "was": str(change.was),
            "now": str(change.now),
        }
        outcome = change.outcome
        if outcome is None or change.now == Status.SENT:
            log.info("notification changed", **line, provider=outcome.provider if outcome else "")
        else:
            write = log.error if change.now == Status.DEAD_LETTERED else log.warning
            write(
                "notification changed",
                **line,
                provider=outcome.provider,
                outcome=str(outcome.verdict),
                error=outcome.error,
                retry_count=change.retry_count,
            )
