"""The Celery tasks of delivery. A task has no arguments, because PostgreSQL has the rows."""

from __future__ import annotations

import functools
import os
from typing import Any

import redis
from celery import current_app, shared_task
from django.conf import settings
from django.db import close_old_connections

from outbox import drain
from outbox.process import Drained
from runtime import bulk_jobs
from runtime.models import BulkJob
from runtime.process.redis_client import make_client
from runtime.process.waker import Waker

#: Add no wake-up to a queue of so many messages: either no worker takes them, or all are busy.
MOST_WAITING = 20


@shared_task
def drain_emails(**_: Any) -> None:
    """Send due e-mails. Enqueue another drain if this one returns before all are sent."""
    _go_on(drain.drain_emails())


@shared_task
def poll_outbox(**_: Any) -> None:
    """Remove old exports, resume bulk jobs, recover expired claims, then drain."""
    BulkJob.objects.remove_old_results()
    bulk_jobs.wake_for_unfinished()
    _go_on(drain.poll())


def _go_on(done: Drained | None) -> None:
    """Start the next drain when its first row is due, instead of at the next poll."""
    if done is None:
        return
    if done.has_more:
        waker.wake()
    elif settings.FAST_PATH and (seconds := done.pause_seconds or done.next_due_seconds) is not None:
        timer.wake(in_seconds=seconds)


def _drain_when_due() -> None:
    close_old_connections()
    _go_on(drain.drain_due())


@functools.cache
def _broker() -> redis.Redis:
    return make_client()


os.register_at_fork(after_in_child=_broker.cache_clear)


def _enqueue_drain() -> None:
    # Redis keeps expired messages until a worker takes them. More wake-ups would add nothing to those.
    if _broker().llen(current_app.conf.task_default_queue) >= MOST_WAITING:
        return
    # A poll makes an older wake-up redundant.
    drain_emails.apply_async(expires=settings.POLL_INTERVAL)


#: Call `waker.wake()` after a commit that makes rows due.
waker = Waker(_enqueue_drain, target="drain")
#: Runs a drain in a worker when the earliest waiting row is due.
timer = Waker(_drain_when_due, target="due")
