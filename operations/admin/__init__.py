"""The admin's first page, and the pages of jobs, pauses, tokens, heartbeats, and the audit log."""

from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount, SocialApp, SocialToken
from django.contrib import admin
from django_celery_beat.models import SolarSchedule

from operations.admin import attention, audit, bound, heartbeats, jobs, pauses, production, tokens, users

__all__ = ["attention", "audit", "bound", "heartbeats", "jobs", "pauses", "production", "tokens", "users"]

admin.site.unregister(SolarSchedule)  # beat runs none (config.beat)
# Users see their own factors under /admin/factors/. The settings have the provider.
admin.site.unregister([Authenticator, EmailAddress, SocialAccount, SocialApp, SocialToken])
