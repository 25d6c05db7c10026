"""Celery's doors to delivery. A task carries nothing: the rows are in PostgreSQL, a task only says "look"."""

from __future__ import annotations

import functools
from typing import Any

import redis
from celery import current_app, shared_task
from django.conf import settings

from notifications.delivery import drain as delivery
from outbox.core.redis_client import make_client
from outbox.core.waker import Waker

#: No wake-up is added to a queue of so many messages: no worker takes them, or all are busy.
MOST_WAITING = 20


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


@functools.cache
def _broker() -> redis.Redis:
    return make_client()


def _enqueue_drain() -> None:
    # Redis keeps expired messages until a worker takes them. Those that wait already say what this one would.
    if _broker().llen(current_app.conf.task_default_queue) >= MOST_WAITING:
        return
    # A wake-up older than a poll has nothing to say that the poll has not said.
    drain_emails.apply_async(expires=settings.POLL_INTERVAL)


#: After a commit: `waker.wake()`.
waker = Waker(_enqueue_drain)
