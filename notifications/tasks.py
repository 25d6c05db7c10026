"""Celery's doors to delivery. A task carries nothing: the rows are in PostgreSQL, a task only says "look"."""

from __future__ import annotations

from typing import Any

from celery import shared_task
from django.conf import settings

from notifications.delivery import drain as delivery
from outbox.core.waker import Waker


@shared_task
def drain_emails(**_: Any) -> None:
    """This function will send what is due, and ask for another drain if it ended before the rows did."""
    done = delivery.drain_emails()
    if done is not None and done.more:
        waker.wake()


@shared_task
def poll_outbox(**_: Any) -> None:
    """This function will do beat's poll: recover expired claims, then drain."""
    done = delivery.poll()
    if done is not None and done.more:
        waker.wake()


def _enqueue_drain() -> None:
    # A wake-up older than a poll has nothing to say that the poll has not said.
    drain_emails.apply_async(expires=settings.POLL_INTERVAL)


#: After a commit: `waker.wake()`.
waker = Waker(_enqueue_drain)
