"""The changes of e-mails' states, and a log line for each."""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
import uuid
from collections.abc import Sequence

import structlog

from notifications import metrics
from notifications.models import EmailNotification
from notifications.states.claimed import Claimed
from notifications.states.outcomes import Outcome, Verdict
from notifications.states.transitions import Status
from runtime.database.ids import id_time
from runtime.database.transactions import after_commit
from runtime.models import AuditRow
from runtime.personal_data import ERASED_ADDRESS

log = structlog.get_logger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class EmailChange:
    """A change of an e-mail's state. Without an `outcome`, a person or an erasure changed it."""

    id: uuid.UUID
    order_id: uuid.UUID
    event_type: str
    recipient_email: str
    correlation_id: str
    traceparent: str
    resent_at: dt.datetime | None
    retry_count: int
    is_awaited: bool
    was: str
    status: str
    ended_by: str
    source: str
    outcome: Outcome | None = None
    #: Until the e-mail is due; None if it is not, or is due at its old place.
    wait_seconds: float | None = None

    @classmethod
    def of(
        cls,
        row: EmailNotification,
        *,
        was: str,
        outcome: Outcome | None = None,
        wait_seconds: float | None = None,
    ) -> EmailChange:
        """Return the change that led to the state of `row`."""
        return cls(
            row.id,
            row.order_id,
            row.event_type,
            row.recipient_email,
            row.correlation_id,
            row.traceparent,
            row.resent_at,
            row.retry_count,
            row.is_awaited,
            was,
            row.status,
            row.ended_by,
            row.source,
            outcome,
            wait_seconds,
        )


def act_on_email(
    email: EmailNotification | EmailChange, *, kind: AuditRow.Kind, act: str, reason: str = ""
) -> AuditRow:
    """Return the audit row of an act on an e-mail."""
    return AuditRow(
        kind=kind,
        act=act,
        reason=reason,
        source=email.source,
        order_id=email.order_id,
        subject_type=EmailNotification._meta.label_lower,
        subject_id=str(email.id),
        subject=f"e-mail {email.id}",
    )


def ids_of(email: EmailNotification | Claimed | EmailChange) -> dict[str, str]:
    """Return the ids of a log line about an e-mail."""
    return {
        "notification_id": str(email.id),
        "order_id": str(email.order_id),
        "event_type": email.event_type,
        "correlation_id": email.correlation_id,
        **({"trace_id": email.traceparent[3:35]} if email.traceparent else {}),
    }


def log_changes(changes: Sequence[EmailChange], *, hide_address: bool = False) -> None:
    """Count and log changes of state after the commit: dead letters as errors, other failures as warnings."""

    def tell() -> None:
        for change in changes:
            _count(change)
            _log(change, recipient=ERASED_ADDRESS if hide_address else change.recipient_email)

    if changes:
        after_commit(tell)


def _count(change: EmailChange) -> None:
    metrics.CHANGES.labels(change.event_type, str(change.status)).inc()
    if change.status == Status.SENT:
        metrics.RETRIES.observe(change.retry_count)
        if change.resent_at is None:
            metrics.COMMIT_TO_SENT.observe(max(0.0, time.time() - id_time(change.id).timestamp()))


def _log(change: EmailChange, *, recipient: str) -> None:
    line = {**ids_of(change), "recipient": recipient, "was": str(change.was), "now": str(change.status)}
    line["ended_by"] = change.ended_by
    outcome = change.outcome
    if outcome is None or change.status == Status.SENT:
        log.info(
            "notification changed",
            **line,
            provider=outcome.provider if outcome else "",
            provider_message_id=outcome.provider_message_id if outcome else "",
        )
        return
    is_routine = outcome.waits_for or outcome.verdict is Verdict.OVERTAKEN
    is_dead = change.status == Status.DEAD_LETTERED
    write = log.error if is_dead else log.info if is_routine else log.warning
    write(
        "notification changed",
        **line,
        provider=outcome.provider,
        outcome=str(outcome.verdict),
        error=outcome.error,
        retry_count=change.retry_count,
    )


def log_created(email: EmailNotification) -> None:
    """Count a new e-mail, and log it as a change of state with an empty `was`. Call it after the commit.

    One without an address is a dead letter from the start.
    """
    metrics.CREATED.labels(email.event_type).inc()
    is_dead = email.status == Status.DEAD_LETTERED
    if is_dead:
        metrics.CHANGES.labels(email.event_type, str(email.status)).inc()
    more = {"resend_of": str(email.resend_of)} if email.resend_of else {}
    more |= {"shop_copy_of": str(email.shop_copy_of)} if email.shop_copy_of else {}
    more |= {"error": email.last_error} if is_dead else {}
    write = log.error if is_dead else log.info
    write(
        "notification changed",
        **ids_of(email),
        recipient=email.recipient_email,
        was="",
        now=str(email.status),
        ended_by=str(email.ended_by),
        **more,
    )
