"""Tell the parcels whose order is still not paid ten minutes after they came. A worker does it for the poll.

Until then the payment may be on its way: over two streams, a backlog lets the parcel pass it.
"""

from __future__ import annotations

import datetime as dt
import time
import uuid

import structlog
from django.db import OperationalError, transaction
from django.db.models import Exists, QuerySet
from django.db.models.functions import Now

from orders.models import Shipment
from orders.services import lock_order
from runtime.database.away import is_lock_timeout
from runtime.models import Pause

log = structlog.get_logger(__name__)

WAIT = dt.timedelta(minutes=10)
#: How long one task works, and how many parcels it reads. Then it makes way for drains and jobs.
LONGEST_SECONDS, MOST = 5.0, 500


def _due() -> QuerySet[Shipment]:
    """Return the parcels that have waited long enough, or none while the consumers are paused.

    The payment may be among what waits for the end of a pause, and a restored database must not change.
    """
    paused = Pause.objects.filter(part=Pause.Part.CONSUMERS)
    return Shipment.objects.filter(~Exists(paused), untold_since__lte=Now() - WAIT)


def is_due() -> bool:
    return _due().exists()


def tell_due() -> bool:
    """Tell due parcels for some seconds, each order's in a transaction. Return whether more are left.

    An order whose row is locked for too long is left to the next poll.
    """
    until = time.monotonic() + LONGEST_SECONDS
    ids = list(_due().order_by("untold_since").values_list("order_id", flat=True)[:MOST])
    for id in dict.fromkeys(ids):
        if time.monotonic() > until:
            return True
        _tell(id)
    return len(ids) == MOST


def _tell(order_id: uuid.UUID) -> None:
    try:
        with transaction.atomic(durable=True):
            change = lock_order(order_id)
            change.tell_waiting(came_by=change.now - WAIT)
            change.save()
    except OperationalError as error:
        if not is_lock_timeout(error):
            raise
        log.warning("parcel not told yet", order_id=str(order_id))
