"""Send a copy of an e-mail, and correct the order's address if wanted."""

from __future__ import annotations

import uuid

from django.db import transaction

from notifications.copies import NotCopied, copy_email
from notifications.models import EmailNotification
from notifications.services import readdress
from orders import services
from orders.models import Order


def send_copy(
    *, notification_id: uuid.UUID, recipient_email: str = "", update_order: bool = False
) -> uuid.UUID:
    """Send a copy of an ended e-mail to its own address, or to `recipient_email`. Return the copy's id.

    If `update_order`, `recipient_email` also becomes the order's address, and later e-mails go there. The
    order keeps its status and version, and no event is written. If it had no address, its other e-mails
    become due, too. Raise `EmailNotification.DoesNotExist`, `Order.DoesNotExist` or `NotCopied` without
    changing anything.
    """
    with transaction.atomic(savepoint=False):
        email = EmailNotification.objects.only("order", "status", "shop_copy_of").get(id=notification_id)
        order = Order.objects.select_for_update().get(id=email.order_id)  # changes and erasures wait
        if update_order and email.shop_copy_of:
            raise NotCopied("it is the shop's copy: correct the customer's e-mail", status=email.status)
        if update_order and order.source and order.email:
            raise NotCopied(f"{order.source} owns the order: correct its address there", status=email.status)
        copy_id = copy_email(id=notification_id, recipient_email=recipient_email)
        if update_order and recipient_email:
            services.correct_address(order_id=order.id, email=recipient_email).save()
            if not order.email:
                readdress(
                    order_id=order.id, recipient_email=recipient_email, to_name=order.name, but=email.id
                )
    return copy_id
