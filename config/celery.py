"""The Celery application of worker and beat. config.beat has the schedule."""

from __future__ import annotations

import _thread
import os
from typing import Any, NoReturn

from celery import Celery, platforms, signals
from celery.apps import beat
from kombu.utils.objects import cached_property

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")


class Beat(beat.Beat):
    """Celery's beat process with another answer to signals."""

    def install_sync_handler(self, service: object) -> None:
        """End by SystemExit; Celery then writes the schedule once the stack is unwound.

        Celery's own handler writes the schedule inside the handler. A signal that interrupts a query would
        then begin a second one on the same connection and wait for ever for psycopg's lock.
        """

        def end(*_: object) -> NoReturn:
            raise SystemExit

        platforms.signals.update(SIGTERM=end, SIGINT=end)

    def start_scheduler(self) -> Any:
        """Begin, unless the URL for the lock cannot hold one. A database that is away is waited for."""
        from django.db import DatabaseError, InterfaceError, connections

        from outbox.database.postgres.sessions import SharedSession

        try:
            connections["direct"].ensure_connection()
        except SharedSession as error:
            raise SystemExit(str(error)) from error
        except (DatabaseError, InterfaceError):
            pass  # the first tick says so
        return super().start_scheduler()


class Application(Celery):
    """Celery with our beat process."""

    @cached_property
    def Beat(self) -> Any:  # noqa: N802 (Celery's name)
        return self.subclass_with_self(Beat)


app = Application("orderpost")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@signals.setup_logging.connect
def _keep_our_logging(**_: Any) -> None:
    """Keep Django's logging: Celery configures none if this signal has a receiver."""


@signals.task_prerun.connect
def _drop_dead_connections(**_: Any) -> None:
    from django.db import close_old_connections

    close_old_connections()


@signals.worker_init.connect
def _watch_worker(**_: Any) -> None:
    from outbox.telemetry.metrics_server import watch

    watch("worker")


@signals.worker_ready.connect
def _freeze_heap(**_: Any) -> None:
    from outbox.process.heap import freeze_heap

    freeze_heap()


@signals.beat_init.connect
def _watch_beat(**_: Any) -> None:
    from outbox.telemetry.metrics_server import watch

    watch("beat")


@signals.worker_shutting_down.connect
def _hand_back(**_: Any) -> None:
    """Tell drains to stop, in another thread: a second SIGTERM may interrupt this one's handler.

    It would then wait for ever for the event's lock, which the first one holds.
    """
    from notifications.delivery import drain as delivery

    _thread.start_new_thread(delivery.stop, ())


@signals.worker_shutdown.connect
def _wait_for_drains(**_: Any) -> None:
    """Wait for the alarm's drain too: Celery has waited for its own tasks alone."""
    from notifications.delivery import drain as delivery

    delivery.stop()  # where no signal ends the worker
    delivery.finish()
