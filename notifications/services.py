"""What others may do with e-mails: enqueue one, resend, give up, settle evidence. Every change is logged.

Called by orders.services (in its transaction), the API, the admin and commands.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping

from django.conf import settings
from django.db import connection, transaction

from notifications import tasks
from notifications.delivery import log_changes
from notifications.models import EmailNotification
from notifications.rendering import render_email
from outbox import context as work_context
from outbox.deliverable import Change, Refusal, Status
from outbox.erasure import ERASED_ADDRESS
from outbox.ids import new_id
from outbox.services import require_transaction


def enqueue_email(
    *,
    order_id: uuid.UUID,
    event_type: str,
    version: int,
    recipient_email: str,
    to_name: str,
    locale: str,
    context: Callable[[], Mapping[str, object]],
) -> uuid.UUID | None:
    """This function will render an e-mail and save it in the caller's transaction, to be sent after commit.

    One e-mail for each order, event and version of the order, however often it is asked for: returns its
    id, or None when `NOTIFY_ON` does not list the event. `context` gives the template's data and is asked
    only when needed. Raises `TransactionRequired` outside a transaction, `KeyError` for an unknown event.
    """
    require_transaction("an e-mail")
    if event_type not in settings.NOTIFY_ON:
        return None
    key = f"{order_id}:{event_type}:{version}"
    notification_id = new_id()
    if (before := _take_key(key, notification_id)) is not None:
        return before
    mail = render_email(event_type=event_type, locale=locale, context=context())
    work = work_context.current()
    EmailNotification.objects.create(
        id=notification_id,
        order_id=order_id,
        event_type=event_type,
        recipient_email=recipient_email,
        to_name=to_name,
        locale=locale,
        subject=mail.subject,
        body=mail.body_html,
        body_text=mail.body_text,
        idempotency_key=key,
        **_nobody(recipient_email),
        max_retries=settings.MAX_RETRIES_FOR.get(event_type, settings.MAX_RETRIES),
        correlation_id=work.correlation_id,
        traceparent=work.traceparent,
    )
    if settings.FAST_PATH:
        transaction.on_commit(lambda: tasks.waker.wake(), robust=True)
    return notification_id


def _nobody(recipient_email: str) -> dict[str, str]:
    """An erased person's later e-mails are recorded, and never due."""
    if recipient_email != ERASED_ADDRESS:
        return {}
    return {"status": Status.SUPPRESSED, "last_error": "the recipient's data was erased"}


def resend(*, ids: Iterable[uuid.UUID]) -> tuple[list[Change], list[Refusal]]:
    """This function will make e-mails due again because a person said so, and wake the workers.

    Takes dead-lettered, given-up and failed ones (unless held), with all their retries, whatever was used
    up; the list of errors stays. Returns what changed and what was refused, with the reason.
    """
    return _by_hand(EmailNotification.objects.requeue(ids), wake=True)


def give_up(*, ids: Iterable[uuid.UUID]) -> tuple[list[Change], list[Refusal]]:
    """This function will mark dead letters `discarded` because a person said so."""
    return _by_hand(EmailNotification.objects.discard(ids), wake=False)


def _by_hand(result: tuple[list[Change], list[Refusal]], *, wake: bool) -> tuple[list[Change], list[Refusal]]:
    changes, _ = result
    log_changes(changes)
    if wake and changes and settings.FAST_PATH:
        transaction.on_commit(lambda: tasks.waker.wake(), robust=True)
    return result


def _take_key(key: str, notification_id: uuid.UUID) -> uuid.UUID | None:
    """Take an e-mail's key for `notification_id`; if it was taken before, say by which notification."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO idempotency_keys (scope, key, request_hash, answer_body, answer_location,"
            " notification_id) VALUES ('email', %s, '', '', '', %s) ON CONFLICT DO NOTHING RETURNING 1",
            [key, notification_id],
        )
        if cursor.fetchone():
            return None
        cursor.execute(
            "SELECT notification_id FROM idempotency_keys WHERE scope = 'email' AND key = %s", [key]
        )
        found: tuple[uuid.UUID] = cursor.fetchone()
        return found[0]
