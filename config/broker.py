"""Celery's way to Redis, for a worker that outlives an outage. The setting CELERY_BROKER_TRANSPORT."""

from __future__ import annotations

from typing import Any

import redis
from kombu.transport import redis as kombu_redis


class Channel(kombu_redis.Channel):
    """Kombu's channel, which says it if its connection is lost.

    A message that came before the loss may be acknowledged or put back after it. Kombu's own channel then
    fails with an AttributeError, at which Celery ends the worker; after a lost connection it connects again.
    The message stays in the broker until its visibility timeout. What it was to wake, the poll finds.
    """

    def conn_or_acquire(self, client: Any = None) -> Any:
        if client is None and (self.connection is None or self.connection.client is None):
            raise redis.ConnectionError("The connection to the broker was lost.")
        return super().conn_or_acquire(client)


class Transport(kombu_redis.Transport):
    Channel = Channel
