"""Make the e-mails of a change, which are saved together with it.

An order has at most one e-mail for each event and version, and one shop copy of it. No constraint can say so:
a unique index of a partitioned table must contain the partition's key. The order's lock does. The
transaction that makes an e-mail holds it, and sees every e-mail that was made before.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Mapping

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

from notifications.content.profiles import find_profile
from notifications.content.render_files import RenderedEmail
from notifications.content.rendering import render_email
from notifications.events import end_event
from notifications.log import log_created
from notifications.models import EmailNotification
from notifications.states.transitions import ERASED_PERSON, NO_ADDRESS, Status, Withheld
from notifications.wake import Reason, wake
from runtime.database.ids import new_id
from runtime.database.transactions import after_commit, require_transaction
from runtime.personal_data import ERASED, ERASED_ADDRESS
from runtime.telemetry import context as work_context

#: The end of a shop copy's idempotency key.
SHOP_ROLE = ":shop"


def new_emails(
    *,
    order_id: uuid.UUID,
    event_type: str,
    version: int,
    recipient_email: str,
    to_name: str,
    locale: str,
    source: str,
    context: Callable[[], Mapping[str, object]],
    interval: dt.timedelta | None = None,
    is_private: bool = False,
    may_exist: bool = False,
    withheld: Withheld | None = None,
) -> list[models.Model]:
    """Return the e-mail about an event, and the shop's copy if there is a `copy_to`, for the caller to save.

    `source` is the order's, whose profile the e-mails get. Without a `recipient_email`, the e-mail is a dead
    letter, and `readdress` makes it due once there is one. Return none if `NOTIFY_ON` does not list the
    event, if the order has an e-mail for this event that was written within `interval`, or if one for this
    version `may_exist` and does. Both e-mails are written as `withheld`, if
    that is given. `context` returns the
    template's data; it is called only if the e-mail is rendered. Raise `UnknownEmail` for an event without
    templates.
    """
    require_transaction("an e-mail")
    if event_type not in settings.NOTIFY_ON:
        return []
    key = f"{order_id}:{event_type}:{version}"
    if interval is not None and _has_email(order_id, event_type=event_type, created_at__gt=Now() - interval):
        return []
    if may_exist and _has_email(order_id, idempotency_key=key):
        return []
    profile = find_profile(source)
    # Record an e-mail to an erased person, but never send it. Its text may have a name or a link of the
    # person, and no later erasure would find it: leave it out.
    is_erased = recipient_email == ERASED_ADDRESS
    content = (
        RenderedEmail(ERASED, "", "")
        if is_erased
        else render_email(event_type=event_type, locale=locale, context=context(), profile=profile)
    )
    work = work_context.current()
    shared = {
        "order_id": order_id,
        "event_type": event_type,
        "order_version": version,
        "locale": locale,
        "profile": profile.source,
        "from_email": profile.from_email,
        "reply_to": profile.reply_to,
        "subject": content.subject,
        "body": content.body_html,
        "body_text": content.body_text,
        "text_versions": list(content.text_versions) or None,
        "is_private": is_private and not is_erased,
        "max_retries": settings.MAX_RETRIES,
        "correlation_id": work.correlation_id,
        "traceparent": work.traceparent,
        "source": source,
    }
    state = withheld if recipient_email or withheld else NO_ADDRESS
    email = EmailNotification(
        id=new_id(),  # before that of the copy: lists have the order of the ids
        recipient_email=recipient_email,
        to_name=to_name,
        idempotency_key=key,
        **shared | _columns(ERASED_PERSON if is_erased else state),
    )
    emails = [email]
    if profile.copy_to and not is_erased:
        # A row of its own: each recipient has a state of its own.
        emails.append(
            EmailNotification(
                recipient_email=profile.copy_to,
                idempotency_key=key + SHOP_ROLE,
                shop_copy_of=email.id,
                customer_email=recipient_email,
                **shared | _columns(withheld),
            )
        )
    log_and_wake(emails, reason=Reason.FAST_PATH)
    dead = [email for email in emails if settings.EMAIL_EVENTS and email.status == Status.DEAD_LETTERED]
    return [*emails, *(end_event(email, attempts=0) for email in dead)]


def _columns(withheld: Withheld | None) -> dict[str, object]:
    return {} if withheld is None else withheld._asdict()


def _has_email(order_id: uuid.UUID, **fields: object) -> bool:
    """Return whether an order has an e-mail with these fields."""
    return EmailNotification.objects.filter(order_id=order_id, **fields).exists()


def log_and_wake(emails: list[EmailNotification], *, reason: Reason) -> None:
    """Log new e-mails and wake the workers, after the commit."""

    def tell() -> None:
        for email in emails:
            log_created(email)
        wake(reason)

    after_commit(tell)
