"""Compare a shop at the moment when it goes live.

What changed in the trial, and whose post was lost, would be told with the next save. The shop has told it. So
the orders whose last save lies before the moment are compared first, and what that finds is history. The
posts that came since wait for it, but not for long: rather an e-mail twice than never.
"""

from __future__ import annotations

import datetime as dt

import structlog
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from shop_connections import compare, process
from shop_connections.http import ShopUnreachable
from shop_connections.models import ShopConnection
from shop_connections.platforms import PLATFORMS

log = structlog.get_logger(__name__)

#: How long posts wait for the comparison.
MOST_SECONDS = 300.0
WITHOUT_KEY = "The connection has no key of the shop's API."


def is_due() -> bool:
    """Return whether a shop went live and was not compared since."""
    return _live().exists()


def compare_all() -> bool:
    """Compare each shop that went live, once. Return False."""
    for shop in _live():
        began_at = (shop.going_live or {}).get("began_at")
        if began_at is None:
            if _live().filter(id=shop.id, going_live__isnull=True).update(going_live=_begun()):
                _compare(shop)
        elif timezone.now() - dt.datetime.fromisoformat(began_at) > dt.timedelta(seconds=MOST_SECONDS):
            end(shop, "The comparison was not done in time.")  # its process may have died
    return False


def end(shop: ShopConnection, problem: str) -> None:
    """Have the posts go on. The page shows the problem, if there is one."""
    now = timezone.now().isoformat()
    values = {"began_at": now, **(shop.going_live or {}), "done_at": now, "problem": problem[:1000]}
    ShopConnection.objects.filter(id=shop.id, live_at=shop.live_at).update(going_live=values)
    shop.going_live = values
    log.info("shop compared as it went live", source=shop.source, problem=problem)
    process.wake()


def _live() -> QuerySet[ShopConnection]:
    live = ShopConnection.objects.filter(
        state=ShopConnection.State.LIVE, live_at__lte=Now(), platform__in=PLATFORMS
    )
    return live.filter(Q(going_live__isnull=True) | ~Q(going_live__has_key="done_at"))


def _begun() -> dict[str, str]:
    return {"began_at": timezone.now().isoformat()}


def _compare(shop: ShopConnection) -> None:
    problem = ""
    try:
        if shop.api_key:
            compare.catch_up(shop, seconds=MOST_SECONDS)
        else:
            problem = WITHOUT_KEY
    except ShopUnreachable as unreachable:
        problem = str(unreachable)
    except Exception:
        log.exception("shop not compared", source=shop.source)
        problem = "The comparison failed here, and the log says why."
    end(shop, problem)
