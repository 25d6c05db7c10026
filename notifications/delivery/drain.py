"""Getting e-mails out: the one drain of this process, the poll, and the log of every change of state.

Every trigger ends in `drain_emails` or `poll`: the Celery tasks, `manage.py drain_outbox`, a person's
resend. Both may be called at any time, by any number of threads and processes at once.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from django.db.models.functions import Now

from notifications.models import EmailNotification
from notifications.providers.sending import PROVIDERS
from notifications.suppressions import suppressed_among
from outbox.delivery.breaker import Rules
from outbox.delivery.deliverable import Change
from outbox.delivery.drain import Drained, drain
from outbox.delivery.gate import Entry, Gate
from outbox.delivery.outcomes import Outcome, Status, Verdict
from outbox.models import Heartbeat

log = structlog.get_logger(__name__)

#: How long one drain claims before it makes room for the worker's other tasks.
DRAIN_SECONDS = 30.0
POLL = "poll"
RECOVER_BATCH = 500
#: How long everyone keeps away from a provider that says "later" and not when.
PAUSE_SECONDS = 30.0
#: A send waits at most so long for its place in the rate; its claim is given back otherwise.
PLACE_SECONDS = 5.0
#: How long a failure waits for its like before it is counted as the mail's own.
SUSPECT_SECONDS, SUSPECT_LOOKS = 1.0, 10
#: The heartbeat of the process that takes webhooks, and how often it beats.
ENDPOINT, PULSE_SECONDS = "web", 5.0
#: Providers' events count as arriving when one came within this; no send is held for longer than the other.
WEBHOOKS_IN_USE, LONGEST_HOLD = dt.timedelta(days=7), dt.timedelta(days=1)
#: What certainly left the mail with us, so that another provider may be asked.
NOT_ACCEPTED = frozenset({Verdict.TRANSIENT, Verdict.THROTTLED, Verdict.MISCONFIGURED, Verdict.UNREACHABLE})


class _Process:
    """What a process keeps between drains; made anew after a fork."""

    def __init__(self) -> None:
        self.busy = threading.Lock()
        self.again = threading.Event()
        self.stopping = threading.Event()
        self._pool: ThreadPoolExecutor | None = None
        self._gate: Gate | None = None

    @property
    def pool(self) -> ThreadPoolExecutor:
        """The sending threads, each with its own provider connections."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(settings.EMAIL_CONCURRENCY, thread_name_prefix="send")
        return self._pool

    @property
    def gate(self) -> Gate:
        """Who may be asked, and when."""
        if self._gate is None:
            self._gate = Gate(
                providers=settings.EMAIL_PROVIDERS,
                url=settings.REDIS_URL,
                rate=settings.EMAIL_RATE_LIMIT,
                burst=settings.EMAIL_RATE_BURST,
                rules=Rules(seconds=settings.BREAKER_OPEN_SECONDS, cap=settings.BREAKER_OPEN_CAP),
            )
        return self._gate


_process = _Process()


def _forget_after_fork() -> None:
    global _process
    _process = _Process()


os.register_at_fork(after_in_child=_forget_after_fork)


def gate() -> Gate:
    """This function will give this process's view of the breakers and the rate."""
    return _process.gate


def send(mail: EmailNotification) -> Outcome:
    """This function will hand an e-mail to the first provider that may be asked; it does not raise.

    What was certainly not accepted goes to the next provider at once. What may have been accepted never
    does: a provider with idempotency keys is asked again with the same key, the others are left to the hold.
    """
    process, asked = _process, [""]
    last = Outcome(Verdict.RETURNED)
    pinned = _pinned_to(mail)
    while True:
        entry = process.gate.enter(patience=_spare(PLACE_SECONDS), only=pinned, without=asked)
        if not entry.provider:
            # Nobody is asked before the gate says so, but for a pinned mail the others' door is open.
            wait = max(1.0, entry.wait) if pinned else None
            return dataclasses.replace(last, wait=wait) if last.verdict is Verdict.RETURNED else last
        if entry.wait and process.stopping.wait(entry.wait):
            return last
        outcome = PROVIDERS[entry.provider].send(mail)
        last = _tell_gate(process, entry, outcome)
        if last.verdict not in NOT_ACCEPTED:
            return last
        if process.stopping.is_set():
            return last
        asked.append(entry.provider)
        log.warning(
            "provider did not take a mail",
            notification_id=str(mail.id),
            provider=entry.provider,
            outcome=str(last.verdict),
            error=last.error,
        )


def _tell_gate(process: _Process, entry: Entry, outcome: Outcome) -> Outcome:
    """Let the breaker know; a failure that opened it, or came while it was open, is not the mail's."""
    gate = process.gate
    match outcome.verdict:
        case Verdict.ACCEPTED | Verdict.PERMANENT:
            gate.succeeded(entry)
        case Verdict.THROTTLED:
            gate.succeeded(entry)  # it answers
            gate.pause(entry, seconds=outcome.wait or PAUSE_SECONDS, reason=outcome.error)
        case Verdict.MISCONFIGURED:
            gate.failed(entry, reason=outcome.error, at_once=True)
        case Verdict.UNREACHABLE:
            gate.failed(entry, reason=outcome.error)
        case Verdict.TRANSIENT | Verdict.AMBIGUOUS:
            if outcome.verdict is Verdict.AMBIGUOUS and PROVIDERS[entry.provider].idempotent:
                outcome = dataclasses.replace(outcome, wait=1.0)  # the same key cannot double it
            if gate.failed(entry, reason=outcome.error) or _opens_now(process, entry.provider):
                outcome = dataclasses.replace(outcome, charged=False)
                if outcome.verdict is Verdict.TRANSIENT:
                    # Later than those that were not tried: the next probes take other mails.
                    seconds = settings.BREAKER_OPEN_SECONDS
                    outcome = dataclasses.replace(outcome, wait=seconds * (1.5 + random.random()))  # noqa: S311
    return outcome


def _opens_now(process: _Process, provider: str) -> bool:
    """Wait a moment for what the failures in a row turn out to be: the provider's, or this mail's own."""
    moment = _spare(SUSPECT_SECONDS) / SUSPECT_LOOKS
    for _ in range(SUSPECT_LOOKS):
        is_open, failures = process.gate.run(provider)
        if is_open or not failures:
            return is_open
        if process.stopping.wait(moment):
            return False
    return False


def _spare(seconds: float) -> float:
    """So long, or less where the lease is short: a send has to end within it, its waits included."""
    spare = settings.LEASE_SECONDS - settings.EMAIL_CONNECT_TIMEOUT - settings.EMAIL_READ_TIMEOUT
    return float(min(seconds, spare / 4))


def _pinned_to(mail: EmailNotification) -> str | None:
    """The provider that may have this mail already, and would know it again by its key."""
    last = mail.errors[-1] if mail.errors else {}
    name = last.get("provider") or mail.provider
    if last.get("outcome") != Verdict.AMBIGUOUS or name not in settings.EMAIL_PROVIDERS:
        return None
    return name if PROVIDERS[name].idempotent else None


def screen(mails: Sequence[EmailNotification]) -> dict[object, Outcome]:
    """This function will name the outcome of claimed e-mails that must not be sent now.

    Those whose address is suppressed; and those that may be out already, while their provider's evidence
    may still come: the hold does not run while our webhook endpoint was down.
    """
    reasons = suppressed_among(mails)
    outcomes: dict[object, Outcome] = {
        id: Outcome(Verdict.SUPPRESSED, text=f"not sent: {reason}") for id, reason in reasons.items()
    }
    doubtful = [mail for mail in mails if _is_doubtful(mail) and not _pinned_to(mail)]
    if doubtful and (missing := _hold_left()) > 0:
        outcomes |= {mail.id: Outcome(Verdict.HELD, wait=missing) for mail in doubtful}
    return outcomes


def _is_doubtful(mail: EmailNotification) -> bool:
    """Whether its last attempt may have been accepted, within the day that evidence may take."""
    last = mail.errors[-1] if mail.errors else {}
    if mail.was != Status.FAILED or last.get("outcome") != Verdict.AMBIGUOUS:
        return False
    at = dt.datetime.fromisoformat(last["at"])
    return dt.datetime.now(dt.UTC) - at < LONGEST_HOLD


def _hold_left() -> float:
    """Seconds for which the webhook endpoint must still be up, if events have been arriving there at all."""
    arrive = Heartbeat.objects.filter(name__startswith="webhook:", beat_at__gt=Now() - WEBHOOKS_IN_USE)
    if not arrive.exists():
        return 0.0
    up = Heartbeat.unbroken(name=ENDPOINT)
    hold = float(settings.AMBIGUOUS_HOLD_SECONDS)
    return hold if up is None else hold - up


def drain_emails() -> Drained | None:
    """This function will send all that is due, unless a drain of this process already does.

    Then that one looks once more before it ends, and this call returns None at once; likewise while the
    process stops. `more` in the answer: call again.
    """
    process = _process
    process.again.set()
    done: Drained | None = None
    while process.again.is_set() and not process.stopping.is_set():
        if not process.busy.acquire(blocking=False):
            break
        try:
            process.again.clear()
            done = _drain(process)
        finally:
            process.busy.release()
        if done.more or done.pause:
            break
    return done


def _drain(process: _Process) -> Drained:
    def look_again() -> bool:
        asked = process.again.is_set()
        process.again.clear()
        return asked

    longest = settings.EMAIL_CONNECT_TIMEOUT + settings.EMAIL_READ_TIMEOUT
    longest += _spare(PLACE_SECONDS) + _spare(SUSPECT_SECONDS)
    return drain(
        rows=EmailNotification.objects.all(),
        send=send,
        pool=process.pool,
        concurrency=settings.EMAIL_CONCURRENCY,
        batch_size=settings.POLL_BATCH_SIZE,
        lease=settings.LEASE_SECONDS,
        send_timeout=min(longest * len(settings.EMAIL_PROVIDERS), settings.LEASE_SECONDS * 0.9),
        seconds=DRAIN_SECONDS,
        screen=screen,
        room=lambda: process.gate.room(batch=settings.POLL_BATCH_SIZE, horizon=_spare(1.0)),
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


def pulse() -> None:
    """This function will beat for as long as this process takes webhooks; for a thread of the web process."""
    while True:
        try:
            Heartbeat.beat(name=ENDPOINT)
        except (DatabaseError, InterfaceError) as error:
            log.warning("no pulse: the database does not answer", error=str(error))
            connection.close()
        time.sleep(PULSE_SECONDS)


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
