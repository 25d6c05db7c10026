"""The Celery application of worker and beat. config.beat has the schedule."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery, signals

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
app = Celery("orderpost")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@signals.setup_logging.connect
def _keep_our_logging(**_: Any) -> None:
    """Keep Django's logging: Celery configures none if this signal has a receiver."""


@signals.task_prerun.connect
def _drop_dead_connections(**_: Any) -> None:
    from django.db import close_old_connections

    close_old_connections()


@signals.worker_shutting_down.connect
def _hand_back(**_: Any) -> None:
    from notifications.delivery import drain as delivery

    delivery.stop()
