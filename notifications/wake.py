"""Queue a drain for a worker, and say why.

Polls, timers and `drain_outbox` call `outbox.drain` in their own process instead, and need no Valkey. The
task is called by its name: the sender is above this package.
"""

from __future__ import annotations

import enum
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


class Reason(enum.StrEnum):
    """The reasons of a drain, as `orderpost_trigger_delay_seconds` labels them."""

    FAST_PATH = "fast_path"  # a commit that wrote an e-mail
    RESEND = "resend"  # a person's resend, copy, or end of a pause
    CDC = "cdc"  # Debezium reported a row
    MORE = "more"  # a drain returned before it had sent all due rows
    DUE = "due"  # a timer: the next retry or hold is due; or the e-mail has ended for which others waited
    POLL = "poll"  # beat or `drain_outbox`
    UNKNOWN = "unknown"  # a wake-up of a release that gives no reason

    @classmethod
    def _missing_(cls, value: object) -> Reason:
        return cls.UNKNOWN


@functools.cache
def _broker() -> redis.Redis:
    return make_client()


os.register_at_fork(after_in_child=_broker.cache_clear)


def _enqueue_drain() -> None:
    # Redis keeps expired messages until a worker takes them. More wake-ups would add nothing to those.
    if _broker().llen(current_app.conf.task_default_queue) >= MOST_WAITING:
        return
    # A poll makes an older wake-up redundant.
    current_app.send_task(DRAIN, kwargs={"reason": waker.reason}, expires=settings.POLL_INTERVAL)


waker = Waker(_enqueue_drain, target="drain")


def wake(reason: Reason) -> None:
    """Have a worker send due e-mails. Call this after the commit that makes rows due.

    `FAST_PATH=off` leaves the shop's own commits and resends to the poll and to other triggers.
    """
    if settings.FAST_PATH or reason not in (Reason.FAST_PATH, Reason.RESEND):
        waker.wake(reason)
