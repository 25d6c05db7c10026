"""Tokens that are bound to a source: they see the e-mails of one system's orders only.

A copy to an address that is not its order's was sent there by an operator, perhaps to a colleague. A bound
token sees the copy, but no address in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models import F, Q, QuerySet

from notifications.models import EmailNotificationQuerySet
from web.models import ApiToken

_order_ids: list[Callable[[str], QuerySet[Any, Any]]] = []
#: A copy to an address that is not its order's.
_ELSEWHERE = Q(resend_of__isnull=False) & ~Q(recipient_email__iexact=F("order__email"))


def register_order_ids(read: Callable[[str], QuerySet[Any, Any]]) -> None:
    """Register what makes the query of the ids of a source's orders. An e-mail has only its order's id."""
    _order_ids[:] = [read]


def visible(
    emails: EmailNotificationQuerySet, token: ApiToken, *, recipient_email: str = ""
) -> EmailNotificationQuerySet:
    """Filter the e-mails that a token can see, and by the recipient if one is given.

    A bound token's rows have `is_elsewhere`, by which the serializer hides addresses.
    """
    if recipient_email:
        emails = emails.filter(recipient_email__iexact=recipient_email)
    if not token.source:
        return emails
    if recipient_email:  # what is hidden is not found, either
        emails = emails.exclude(_ELSEWHERE)
    return emails.filter(order_id__in=_order_ids[0](token.source)).annotate(is_elsewhere=_ELSEWHERE)
