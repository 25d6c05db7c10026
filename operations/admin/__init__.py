"""The admin's first page, and the pages of jobs, pauses, tokens, heartbeats, and the audit log."""

from django.contrib import admin
from django_celery_beat.models import SolarSchedule

from operations.admin import attention, audit, bound, heartbeats, jobs, pauses, production, tokens, users

__all__ = ["attention", "audit", "bound", "heartbeats", "jobs", "pauses", "production", "tokens", "users"]

admin.site.unregister(SolarSchedule)  # beat runs none (config.beat)
