"""Cancel orders that were never paid. Called by a task of beat each minute."""

from __future__ import annotations

import datetime as dt
import uuid

import structlog
from django.conf import settings
from django.db import InterfaceError, OperationalError
from django.db.models import Q

from orders import changes, services
from orders.models import Order
from outbox.database.clock import read_database_time
from outbox.models import Pause

log = structlog.get_logger(__name__)

#: Orders that one run cancels. The first run after PENDING_ORDER_HOURS was set may find years of them.
MOST = 1000


def cancel_unpaid() -> int:
    """Cancel pending orders without a change for PENDING_ORDER_HOURS, the oldest first. Return their number.

    Cancel none while payments may be unread: while the consumers are paused, or after a restore until
    everything is resumed.
    """
    if settings.PENDING_ORDER_HOURS is None:
        return 0
    if Pause.objects.filter(Q(part=Pause.Part.CONSUMERS) | Q(restored_to__isnull=False)).exists():
        return 0
    before = read_database_time() - dt.timedelta(hours=settings.PENDING_ORDER_HOURS)
    ids = list(Order.objects.unpaid(before=before).order_by("id").values_list("id", flat=True)[:MOST])
    cancelled = sum(_cancel(id, before) for id in ids)
    if cancelled:
        log.info("unpaid orders cancelled", count=cancelled)
    return cancelled


def _cancel(id: uuid.UUID, before: dt.datetime) -> bool:
    """Cancel one order in its own transaction. One that cannot be cancelled does not hold up the others."""
    try:
        order = services.change_order(order_id=id, decide=changes.cancel_unpaid, before=before)
    except (InterfaceError, OperationalError):
        raise  # the database is away
    except Exception:
        log.exception("unpaid order not cancelled", order_id=str(id))
        return False
    return order.status == Order.Status.CANCELLED
