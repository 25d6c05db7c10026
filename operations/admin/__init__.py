"""The admin's first page, and the pages of jobs, pauses, tokens, heartbeats, and the audit log."""

from django.contrib import admin
from django_celery_beat.models import SolarSchedule

from operations.admin import attention, audit, heartbeats, jobs, pauses, production, tokens

__all__ = ["attention", "audit", "heartbeats", "jobs", "pauses", "production", "tokens"]

admin.site.unregister(SolarSchedule)  # beat runs none (config.beat)
