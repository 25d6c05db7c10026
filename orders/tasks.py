"""The Celery task of orders. config.beat has its schedule."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from orders import unpaid


@shared_task
def cancel_unpaid(**_: Any) -> None:
    """Cancel the orders that were never paid, if PENDING_ORDER_HOURS is set."""
    unpaid.cancel_unpaid()
