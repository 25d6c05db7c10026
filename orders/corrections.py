"""Correct an order's address, and send a copy of an e-mail to it."""

from __future__ import annotations

import functools
import uuid

from django.db import transaction

from notifications.content.copies import NotCopied, copy_email
from notifications.content.render_files import RenderedEmail
from notifications.models import EmailNotification
from notifications.services import readdress
from notifications.states.transitions import ENDED, Status
from orders import services
from orders.models import Order
from orders.render_again import NotRendered, render_public
from runtime.personal_data import ERASED_ADDRESS


def send_copy(
    *, notification_id: uuid.UUID, recipient_email: str = "", update_order: bool = False
) -> uuid.UUID:
    """Send a copy of an ended e-mail to its own address, or to `recipient_email`. Return the copy's id.

    To another address than the order's, a private e-mail is rendered again, without the customer's note and
    the link to the order.

    If `update_order`, `recipient_email` also becomes the order's address, and later e-mails go there. The
    order keeps its status and version, and no event is written. If it had no address, its other e-mails
    become due, too. Raise `EmailNotification.DoesNotExist`, `Order.DoesNotExist` or `NotCopied` without
    changing anything.
    """
    with transaction.atomic(savepoint=False):
        columns = ("order", "status", "shop_copy_of", "recipient_email")
        email = EmailNotification.objects.only(*columns).get(id=notification_id)
        order = Order.objects.select_for_update().get(id=email.order_id)  # changes and erasures wait
        if update_order and email.shop_copy_of:
            raise NotCopied("it is the shop's copy: correct the customer's e-mail", status=email.status)
        if update_order and order.source and order.email:
            raise NotCopied(f"{order.source} owns the order: correct its address there", status=email.status)
        to = recipient_email or email.recipient_email
        is_theirs = update_order or to.lower() == order.email.lower()
        copy_id = copy_email(
            id=notification_id,
            recipient_email=recipient_email,
            render_public=None if is_theirs else functools.partial(_render_public, order),
        )
        if update_order and recipient_email:
            _correct(order, recipient_email, except_id=email.id)
    return copy_id


def correct_address(*, order_id: uuid.UUID, email: str, is_copy_wanted: bool) -> uuid.UUID | None:
    """Correct an order's address. If wanted, send a copy of its last e-mail there, and return the copy's id.

    The e-mails of an order that had no address become due, so that no copy is needed. Raise
    `Order.DoesNotExist`, `ExternallyOwned` or `NotCopied` without changing anything.
    """
    with transaction.atomic(savepoint=False):
        order = Order.objects.select_for_update().get(id=order_id)
        if order.email == ERASED_ADDRESS:
            raise NotCopied("its data was erased", status=order.status)
        _correct(order, email)
        last = find_last_email(order_id=order_id) if order.email and is_copy_wanted else None
        return copy_email(id=last.id, recipient_email=email) if last else None


def find_last_email(*, order_id: uuid.UUID) -> EmailNotification | None:
    """Return the customer's newest e-mail of an order that may be copied.

    Leave out one that was given up because a new one was rendered in its place: its text may be wrong.
    """
    of_order = EmailNotification.objects.filter(order_id=order_id)
    copied = of_order.exclude(resend_of=None).values("resend_of")
    emails = of_order.filter(shop_copy_of=None, status__in=ENDED)
    emails = emails.exclude(status=Status.DISCARDED, id__in=copied)
    return emails.exclude(recipient_email="").defer("body", "body_text").order_by("-id").first()


def _render_public(order: Order, email: EmailNotification) -> RenderedEmail:
    try:
        return render_public(email, order)
    except NotRendered as error:
        raise NotCopied(
            f"it would have to be rendered without the customer's note and link, and {error}",
            status=email.status,
        ) from error


def _correct(order: Order, email: str, *, except_id: uuid.UUID | None = None) -> None:
    """Correct the address of an order that is locked. If it had none, its e-mails but one become due."""
    services.correct_address(order_id=order.id, email=email).save()
    if not order.email:
        readdress(order_id=order.id, recipient_email=email, to_name=order.name, except_id=except_id)
