"""The Celery application of worker and beat."""

from __future__ import annotations

import _thread
import os
import sys
from typing import Any, NoReturn

from celery import Celery, platforms, signals
from celery.apps import beat
from kombu.utils.objects import cached_property

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")


class Beat(beat.Beat):
    """Celery's beat process with its own signal handlers."""

    def install_sync_handler(self, service: object) -> None:
        """Exit by SystemExit. Celery then writes the schedule after the stack is unwound.

        Celery's handler writes the schedule itself. If the signal interrupts a query, it would begin a second
        query on the same connection and wait for ever for psycopg's lock.
        """

        def end(*_: object) -> NoReturn:
            raise SystemExit

        platforms.signals.update(SIGTERM=end, SIGINT=end)

    def start_scheduler(self) -> Any:
        """Begin the health file first. The scheduler's setup waits for PostgreSQL."""
        from runtime.telemetry.metrics_server import watch

        watch("beat")
        _keep_beating("beat")
        return super().start_scheduler()


class Application(Celery):
    """Celery with our beat process."""

    @cached_property
    def Beat(self) -> Any:  # noqa: N802 (Celery's name)
        return self.subclass_with_self(Beat)


def _keep_beating(kind: str) -> None:
    """Beat, or exit with the reason for which this database must not be used. Celery would log its stack."""
    from django.core.exceptions import ImproperlyConfigured

    from runtime.process.presence import keep_beating

    try:
        keep_beating(kind)
    except ImproperlyConfigured as error:
        sys.exit(str(error))


app = Application("orderpost")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@signals.setup_logging.connect
def _keep_our_logging(**_: Any) -> None:
    """Keep Django's logging: Celery configures no logging if this signal has a receiver."""


@signals.task_prerun.connect
def _drop_dead_connections(**_: Any) -> None:
    from django.db import close_old_connections

    close_old_connections()


@signals.task_postrun.connect
def _drop_tracebacks(retval: object, **_: Any) -> None:
    """Let go of the frames of a failed task, which was logged. `retval` is its exception.

    Celery's frame refers to the exception, and the exception's traceback to the frame, together with Celery's
    copy of the traceback, up to a megabyte. With a frozen heap the collector came to few of these cycles in
    an hour of faults, and the worker grew by 12 MB.
    """
    while isinstance(retval, BaseException) and retval.__traceback__ is not None:
        retval.__traceback__ = None
        retval = retval.__cause__ or retval.__context__


@signals.worker_init.connect
def _watch_worker(**_: Any) -> None:
    from runtime.process.cached_rows import keep_fresh
    from runtime.telemetry.metrics_server import watch

    watch("worker")
    _keep_beating("worker")
    keep_fresh()


@signals.worker_ready.connect
def _freeze_heap(**_: Any) -> None:
    from runtime.process.heap import freeze_heap

    freeze_heap()


@signals.worker_shutting_down.connect
def _hand_back(**_: Any) -> None:
    """Tell drains to stop, from another thread.

    A second SIGTERM may interrupt the handler of the first, and would wait for ever for the event's lock,
    which the first handler holds.
    """
    from outbox import drain as delivery

    _thread.start_new_thread(delivery.stop, ())


@signals.worker_shutdown.connect
def _wait_for_drains(**_: Any) -> None:
    """Wait for the alarm's drain, too. Celery waits only for its own tasks."""
    from outbox import drain as delivery

    delivery.finish()
