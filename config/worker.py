"""The Celery worker's loop (CELERY_WORKER_CONSUMER), which beats for its probe and survives its broker."""

from __future__ import annotations

import time
from typing import Any

import redis
import structlog
from celery.worker import consumer
from celery.worker.state import maybe_shutdown

from runtime.process.outage import Outage
from runtime.process.start import wait_for_postgres
from runtime.telemetry import health

#: Seconds before a worker reconnects after an error answer. A replica accepts connections but refuses each
#: command, so without a pause the worker would reconnect in a tight loop.
REFUSED_SECONDS = 0.5

log = structlog.get_logger(__name__)


def _pause(seconds: float) -> None:
    maybe_shutdown()  # raises, to stop
    time.sleep(seconds)


class WorkerConsumer(consumer.Consumer):
    """Celery's consumer of tasks, with a beat of its event loop.

    While it waits for a broker that is down, no loop runs. A restart would not help, and the worker counts as
    healthy.
    """

    def ensure_connected(self, conn: Any) -> Any:
        """Wait for PostgreSQL, which each task needs, and then for the broker.

        Log once what the worker waits for. Celery would log an error for each try.
        """
        if self.first_connection_attempt:
            wait_for_postgres(pause=_pause)
        outage = Outage(log)
        conn.ensure_connection(
            lambda error, _: outage.warn("waiting for Valkey", error), callback=maybe_shutdown
        )
        outage.end("Valkey is back")
        self.first_connection_attempt = False
        return conn

    def register_with_event_loop(self, hub: Any) -> None:
        super().register_with_event_loop(hub)
        health.beat()
        hub.timer.call_repeatedly(health.WRITE_SECONDS, health.beat)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Drop the messages that were delivered but not begun. The poll finds the rows that they stood for.

        Kombu would put them back through the lost connection, and that error would end the worker.
        """
        transport: Any = self.connection and self.connection.transport
        for channel in transport.channels:
            channel.do_restore = False
        super().on_connection_error_after_connected(exc)
        if isinstance(exc, redis.ResponseError):
            time.sleep(REFUSED_SECONDS)

    def on_close(self) -> None:
        """Stop the beats. The loop stops for another connection or for good."""
        health.end()
        super().on_close()
