"""Copies: new e-mails with the content or the recipient of ended ones."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from django.conf import settings

from notifications.content.new_emails import log_and_wake
from notifications.content.render_files import RenderedEmail
from notifications.models import CONTENT, EmailNotification
from notifications.states.transitions import ENDED, EndedBy
from notifications.suppressions import suppressed_among
from notifications.wake import Reason
from runtime.addresses import is_usable
from runtime.database.ids import new_id
from runtime.database.save import save_together
from runtime.database.transactions import require_transaction
from runtime.personal_data import ERASED_ADDRESS
from runtime.telemetry import context as work_context

#: The columns that a copy has from its original, besides its content.
KEPT = (
    *("order_id", "source", "event_type", "recipient_email", "to_name", "locale"),
    *("profile", "from_email", "reply_to", "shop_copy_of", "customer_email", "is_private"),
)


class NotCopied(Exception):
    """An e-mail cannot be copied. The text says why; `status` is the e-mail's state."""

    def __init__(self, reason: str, *, status: str) -> None:
        super().__init__(reason)
        self.status = status


def copy_email(
    *,
    id: uuid.UUID,
    recipient_email: str = "",
    render_public: Callable[[EmailNotification], RenderedEmail] | None = None,
) -> uuid.UUID:
    """Insert a copy of an ended e-mail, to the same or another address, and return the copy's id.

    If `render_public` is given, the copy of a private e-mail has what it returns. It may raise `NotCopied`.
    The caller must have locked the order, or an erasure could miss the copy. Raise
    `EmailNotification.DoesNotExist`, or `NotCopied` with the reason.
    """
    require_transaction("a copy")
    email = (
        EmailNotification.objects.select_for_update(no_key=True)
        .only("status", "ended_by", "last_error", *KEPT, *CONTENT, "text_versions")
        .get(id=id)
    )
    if reason := why_not_copied(email=email):
        raise NotCopied(reason, status=email.status)
    email.recipient_email = recipient_email or email.recipient_email
    if not is_usable(email.recipient_email):
        raise NotCopied("it has no usable address: give one", status=email.status)
    for why in suppressed_among([email]).values():
        raise NotCopied(f"the address is suppressed: {why}", status=email.status)
    content = RenderedEmail(email.subject, email.body, email.body_text, email.text_versions or ())
    if email.is_private and render_public is not None:
        content, email.is_private = render_public(email), False
    return add_copy(email, content=content)


def why_not_copied(*, email: EmailNotification) -> str:
    """Return why no address can get a copy of the e-mail, or an empty text."""
    if email.status not in ENDED:
        return f"it is {email.status} and may still be sent"
    if email.ended_by == EndedBy.TRIAL:
        return f"it is {email.last_error}"
    return "its data was erased" if email.recipient_email == ERASED_ADDRESS else ""


def add_copy(email: EmailNotification, *, content: RenderedEmail) -> uuid.UUID:
    """Insert an e-mail with the recipient of `email` and this content, and return its id.

    The caller has checked that the recipient may get it.
    """
    work = work_context.current()
    id = new_id()
    copy = EmailNotification(
        id=id,
        **{name: getattr(email, name) for name in KEPT},
        idempotency_key=f"copy:{id}",
        resend_of=email.id,
        subject=content.subject,
        body=content.body_html,
        body_text=content.body_text,
        text_versions=list(content.text_versions) or None,
        max_retries=settings.MAX_RETRIES,
        correlation_id=work.correlation_id,
        traceparent=work.traceparent,
    )
    save_together(copy)
    log_and_wake([copy], reason=Reason.RESEND)
    return id
