"""Ask shops anew for what their platforms keep of the installation, such as the keys of signatures.

A request never asks a shop. It answers a signature whose key is not known yet with 503, and has a worker ask.
"""

from __future__ import annotations

import datetime as dt
import time

import structlog
from django.db import InterfaceError, OperationalError
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from shop_connections import process
from shop_connections.http import ShopUnreachable
from shop_connections.models import ShopConnection
from shop_connections.platforms import PLATFORMS, platform_of

log = structlog.get_logger(__name__)

#: How often a shop is asked; how soon at the earliest, because of a post or after a failure.
EVERY, SOONEST = dt.timedelta(hours=1), dt.timedelta(minutes=1)
#: How long one call of `refresh_some` lasts, and how long a shop may take.
LONGEST_SECONDS, SHOP_SECONDS = 20.0, 10.0


def ask_soon(shop: ShopConnection) -> None:
    """Have a worker ask a shop, unless one has within `SOONEST` or soon will."""
    now = timezone.now()
    if shop.refresh_at is None or shop.refresh_at <= now + SOONEST:
        return
    at = max(now, shop.refresh_at - EVERY + SOONEST)
    if ShopConnection.objects.filter(id=shop.id, refresh_at=shop.refresh_at).update(refresh_at=at):
        process.wake()


def is_due() -> bool:
    """Return whether a shop is to be asked."""
    return _due().exists()


def refresh_some() -> bool:
    """Ask shops for some seconds. Return whether more are left."""
    until = time.monotonic() + LONGEST_SECONDS
    for shop in _due().order_by("refresh_at"):
        if time.monotonic() > until:
            return True
        # First note the try: another worker must not ask, too, and it may end the process.
        mine = ShopConnection.objects.filter(id=shop.id, refresh_at=shop.refresh_at)
        if mine.update(refresh_at=timezone.now() + SOONEST):
            _refresh(shop)
    return False


def _refresh(shop: ShopConnection) -> None:
    refresh = platform_of(shop).refresh
    rows = ShopConnection.objects.filter(id=shop.id, installation=shop.installation)
    try:
        kept = refresh(shop, seconds=SHOP_SECONDS) if refresh is not None else None
    except (OperationalError, InterfaceError):
        raise  # the database's own state
    except ShopUnreachable as problem:
        log.warning("shop not asked", source=shop.source, problem=str(problem))
    except Exception:
        log.exception("shop not asked", source=shop.source)
    else:  # unless it was installed again meanwhile
        values = {} if kept is None else {"installation": kept}
        rows.update(refresh_at=None if kept is None else timezone.now() + EVERY, **values)


def _due() -> QuerySet[ShopConnection]:
    shops = ShopConnection.objects.active().filter(platform__in=PLATFORMS)
    return shops.filter(refresh_at__lte=Now())
