"""Copies of e-mails: new ones with the content of ended ones. orders.corrections makes them."""

from __future__ import annotations

import uuid

from django.conf import settings

from notifications import tasks
from notifications.delivery.log import log_created
from notifications.models import EmailNotification
from notifications.suppressions import suppressed_among
from outbox.core import context as work_context
from outbox.core.privacy import ERASED_ADDRESS
from outbox.core.transactions import after_commit, require_transaction
from outbox.delivery.outcomes import ENDED, Status


class NotCopied(Exception):
    """An e-mail is not copied. The text says why, `status` in which state it is."""

    def __init__(self, reason: str, *, status: str) -> None:
        super().__init__(reason)
        self.status = status


def copy_email(*, id: uuid.UUID, recipient_email: str = "") -> uuid.UUID:
    """Save a new e-mail with the content of an ended one, to the same address or another, and return its id.

    The first one stays as it is. The caller has locked the order, so that no erasure can miss the copy. Raise
    `EmailNotification.DoesNotExist`, or `NotCopied` with the reason.
    """
    require_transaction("a copy")
    columns = ("id", "order", "event_type", "recipient_email", "status")
    mail = EmailNotification.objects.select_for_update(no_key=True).only(*columns).get(id=id)
    if mail.status not in ENDED:
        raise NotCopied(f"it is {mail.status} and may still be sent by itself", status=mail.status)
    if mail.recipient_email == ERASED_ADDRESS:
        raise NotCopied("its data was erased", status=mail.status)
    mail.recipient_email = recipient_email or mail.recipient_email
    for why in suppressed_among([mail]).values():
        raise NotCopied(f"the address is suppressed: {why}", status=mail.status)
    work = work_context.current()
    copy_id = EmailNotification.objects.insert_copy(
        of=id,
        recipient_email=mail.recipient_email,
        correlation_id=work.correlation_id,
        traceparent=work.traceparent,
        max_retries=settings.MAX_RETRIES_FOR.get(mail.event_type, settings.MAX_RETRIES),
    )

    def announce() -> None:
        log_created(
            notification_id=copy_id,
            order_id=mail.order_id,
            event_type=mail.event_type,
            recipient_email=mail.recipient_email,
            status=Status.PENDING,
            work=work,
            resend_of=id,
        )
        if settings.FAST_PATH:
            tasks.waker.wake()

    after_commit(announce)
    return copy_id
