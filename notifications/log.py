"""Log every change of an e-mail's state."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from notifications import metrics
from notifications.models import EmailNotification
from notifications.states.transitions import Status
from runtime.database.transactions import after_commit

log = structlog.get_logger(__name__)


def ids_of(mail: EmailNotification) -> dict[str, str]:
    """Return the ids of a log line about an e-mail."""
    return {
        "notification_id": str(mail.id),
        "order_id": str(mail.order_id),
        "event_type": mail.event_type,
        "correlation_id": mail.correlation_id,
        **({"trace_id": mail.traceparent[3:35]} if mail.traceparent else {}),
    }


def log_changes(mails: Sequence[EmailNotification]) -> None:
    """Count and log changes of state after the commit: dead letters as errors, other failures as warnings."""
    if mails:
        after_commit(lambda: _log_changes(mails), using=mails[0]._state.db or "default")


def _log_changes(mails: Sequence[EmailNotification]) -> None:
    metrics.count_changes(mails)
    for mail in mails:
        line = {
            **ids_of(mail),
            "recipient": mail.recipient_email,
            "was": str(mail.was),
            "now": str(mail.status),
        }
        outcome = mail.outcome
        if outcome is None or mail.status == Status.SENT:
            log.info(
                "notification changed",
                **line,
                provider=outcome.provider if outcome else "",
                provider_message_id=outcome.provider_message_id if outcome else "",
            )
        else:
            write = log.error if mail.status == Status.DEAD_LETTERED else log.warning
            write(
                "notification changed",
                **line,
                provider=outcome.provider,
                outcome=str(outcome.verdict),
                error=outcome.error,
                retry_count=mail.retry_count,
            )


def log_created(email: EmailNotification) -> None:
    """Count a new e-mail, and log it as a change of state with an empty `was`. Call it after the commit."""
    metrics.CREATED.labels(email.event_type).inc()
    more = {"resend_of": str(email.resend_of)} if email.resend_of else {}
    more |= {"shop_copy_of": str(email.shop_copy_of)} if email.shop_copy_of else {}
    log.info(
        "notification changed",
        **ids_of(email),
        recipient=email.recipient_email,
        was="",
        now=str(email.status),
        **more,
    )
