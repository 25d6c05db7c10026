"""The generic engine's app. It imports neither orders nor e-mail."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.contrib.admin import apps as admin_apps
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules


def make_partitions(*, using: str, **_: Any) -> None:
    """Make the next partitions at the end of every migrate."""
    from outbox.retention import partitions

    for _name in partitions.ensure_all(using=using):
        pass


class SiteConfig(admin_apps.AdminConfig):
    """Django's admin with our site."""

    default_site = "outbox.site.Site"
    default = False


class OutboxConfig(AppConfig):
    name = "outbox"
    default = True

    def ready(self) -> None:
        """Make partitions once the last app is migrated; import what each app declares."""
        from django.apps import apps

        post_migrate.connect(make_partitions, sender=apps.get_app_config("orders"), dispatch_uid="partitions")
        autodiscover_modules("metrics", "sums", "bulk_actions")
