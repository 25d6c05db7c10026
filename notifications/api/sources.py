"""Tokens that are bound to a source: they see the e-mails of one system's orders only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models import QuerySet

from notifications.models import EmailNotificationQuerySet
from web.models import ApiToken


def _unknown(source: str) -> QuerySet[Any, Any]:
    raise LookupError("No app has set order_ids.")


#: Returns a query of the ids of a source's orders. `orders.apps` sets it, because e-mails only have the ids.
order_ids: Callable[[str], QuerySet[Any, Any]] = _unknown


def visible(mails: EmailNotificationQuerySet, token: ApiToken) -> EmailNotificationQuerySet:
    """Filter the e-mails that a token can see."""
    return mails.filter(order_id__in=order_ids(token.source)) if token.source else mails
