"""The Celery worker's loop: watched by `manage.py health worker`, and it outlives its broker.

The setting CELERY_WORKER_CONSUMER.
"""

from __future__ import annotations

import time
from typing import Any

import redis
from celery.worker import consumer

from outbox.telemetry import health

#: Seconds before a worker reconnects after an error answer. A replica accepts connections and refuses each
#: command at once, so without a pause the worker would reconnect as fast as it can.
REFUSED_SECONDS = 0.5


class Consumer(consumer.Consumer):
    """Celery's consumer of tasks, with a beat of its event loop.

    While it waits for a broker that is away there is no loop, and the worker is healthy: a restart would not
    help.
    """

    def register_with_event_loop(self, hub: Any) -> None:
        super().register_with_event_loop(hub)
        health.beat()
        hub.timer.call_repeatedly(health.EVERY, health.beat)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Forget the messages that were delivered and not begun: what they were to wake, the poll finds.

        Kombu would put them back through the connection that is lost, and the error of that ends the worker.
        """
        transport: Any = self.connection and self.connection.transport
        for channel in transport.channels:
            channel.do_restore = False
        super().on_connection_error_after_connected(exc)
        if isinstance(exc, redis.ResponseError):
            time.sleep(REFUSED_SECONDS)

    def on_close(self) -> None:
        """End the beats: the loop is left, for another connection or for good."""
        health.end()
        super().on_close()
