"""Cancel orders that were never paid. Called by a task of beat each minute."""

from __future__ import annotations

import datetime as dt
import re
import uuid

import structlog
from django.conf import settings
from django.db import InterfaceError, OperationalError, connection
from django.db.models import Q

from orders import changes, services
from orders.inbound.payments_and_stock import PAYMENT
from orders.models import Order
from outbox.database.clock import read_database_time
from outbox.events.consuming.consumer import GROUP
from outbox.events.transports import BrokerAway, consumer_lags
from outbox.models import InboundDeadLetter, Pause
from outbox.telemetry.context import Context, new_correlation_id, working_for

log = structlog.get_logger(__name__)

#: Orders that one run cancels. The first run after PENDING_ORDER_HOURS was set may find years of them.
MOST = 1000
#: Payments that wait for so long at the broker mean that the consumers do not keep up.
LATE_SECONDS = 60.0
_UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE)


def cancel_unpaid() -> int:
    """Cancel pending orders without a change for PENDING_ORDER_HOURS, the oldest first. Return their number.

    Cancel none while payments may be unread, and no order whose payment is a dead letter.
    """
    if settings.PENDING_ORDER_HOURS is None or _are_payments_unread():
        return 0
    before = read_database_time() - dt.timedelta(hours=settings.PENDING_ORDER_HOURS)
    orders = Order.objects.unpaid(before=before)
    if orders.exists():
        orders = orders.exclude(id__in=_named_by_dead_payments())
    ids = list(orders.order_by("created_at", "id").values_list("id", flat=True)[:MOST])
    cancelled = sum(_cancel(id, before) for id in ids)
    if cancelled:
        log.info("unpaid orders cancelled", count=cancelled)
    return cancelled


def _are_payments_unread() -> bool:
    """Return whether the consumers are paused or late, the broker is away, or a restore is not resumed."""
    if Pause.objects.filter(Q(part=Pause.Part.CONSUMERS) | Q(restored_to__isnull=False)).exists():
        return True
    try:
        return any(lag.seconds > LATE_SECONDS for lag in consumer_lags(topics=[PAYMENT], group=GROUP))
    except BrokerAway:
        return True


def _named_by_dead_payments() -> set[uuid.UUID]:
    """Return the ids in payments that are dead letters, which an operator or a replay will decide.

    Their customers may have paid. An envelope that cannot be read may still have an order's id.
    """
    letters = InboundDeadLetter.objects.unresolved().filter(topic=PAYMENT)
    envelopes = letters.values_list("envelope", flat=True).iterator()
    return {uuid.UUID(id) for envelope in envelopes for id in _UUID.findall(envelope)}


def _cancel(id: uuid.UUID, before: dt.datetime) -> bool:
    """Cancel one order in its own transaction. One that cannot be cancelled does not hold up the others."""
    with working_for(Context(new_correlation_id())):
        try:
            order = services.change_order(order_id=id, decide=changes.cancel_unpaid, before=before)
        except Exception as error:
            if isinstance(error, InterfaceError | OperationalError) and not connection.is_usable():
                raise  # the database is away
            log.exception("unpaid order not cancelled", order_id=str(id))
            return False
    return order.status == Order.Status.CANCELLED
