"""The tasks of connections, and how a worker is woken. They have no argument: PostgreSQL has the posts."""

from __future__ import annotations

import contextlib
from typing import Any

from celery import current_app, shared_task
from django.conf import settings

from connections.missing import compare
from connections.models import ShopConnection
from connections.posts import process_waiting
from connections.woocommerce.client import ShopUnreachable
from runtime.process.waker import Waker

#: How long one task works. Then it makes way for drains and polls, and queues the next.
LONGEST_SECONDS = 20.0
#: When a task looks again that met another one at work.
AGAIN_SECONDS = 1.0


@shared_task(name="take_posts")
def take_posts(**_: Any) -> None:
    """Process the posts of connected shops."""
    if process_waiting(seconds=LONGEST_SECONDS):
        waker.wake(in_seconds=AGAIN_SECONDS)


@shared_task(name="compare_shops")
def compare_shops(**_: Any) -> None:
    """Compare the orders of each shop that posts and gave a key of its API. One that fails stops no other."""
    for shop in ShopConnection.objects.active().exclude(api_key="").exclude(last_post_at=None):
        with contextlib.suppress(ShopUnreachable):  # its page says why
            compare(shop)


def wake() -> None:
    """Have a worker process stored posts. Call this after the commit that stores one."""
    if settings.FAST_PATH:
        waker.wake()


def _enqueue() -> None:
    # A poll makes an older wake-up redundant.
    current_app.send_task("take_posts", expires=settings.POLL_INTERVAL)


waker = Waker(_enqueue, target="posts")
