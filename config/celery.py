"""The Celery application and the whole beat schedule. Loaded by every process that enqueues or runs tasks."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
app = Celery("orderpost")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
