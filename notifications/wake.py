"""Wake a worker after a commit that makes e-mails due.

The task has a name here instead of an import, because the sender is above this package.
"""

from __future__ import annotations

import functools
import os

import redis
from celery import current_app
from django.conf import settings

from runtime.process.redis_client import make_client
from runtime.process.waker import Waker

#: The task of `outbox.tasks` that sends due e-mails.
DRAIN = "drain_emails"
#: Add no wake-up to a queue of so many messages: either no worker takes them, or all are busy.
MOST_WAITING = 20


@functools.cache
def _broker() -> redis.Redis:
    return make_client()


os.register_at_fork(after_in_child=_broker.cache_clear)


def _enqueue_drain() -> None:
    # Redis keeps expired messages until a worker takes them. More wake-ups would add nothing to those.
    if _broker().llen(current_app.conf.task_default_queue) >= MOST_WAITING:
        return
    # A poll makes an older wake-up redundant.
    current_app.send_task(DRAIN, expires=settings.POLL_INTERVAL)


#: Call `waker.wake()` after a commit that makes rows due.
waker = Waker(_enqueue_drain, target="drain")
