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


def make_groups(*, using: str, **_: Any) -> None:
    """Make the groups viewer, support and operator at the end of every migrate."""
    from outbox.roles import make_roles

    make_roles(using=using)


class SiteConfig(admin_apps.AdminConfig):
    """Django's admin with our site."""

    default_site = "outbox.site.Site"
    default = False


class OutboxConfig(AppConfig):
    name = "outbox"
    default = True
    #: What the groups that migrate makes may do: outbox.roles.
    roles = {
        "viewer": [
            "outbox.view_outboxevent",
            "outbox.view_deadevent",
            "outbox.view_heartbeat",
            "outbox.view_retiredpartition",
            "outbox.view_bulkjob",
            "admin.view_logentry",
        ],
        "operator": ["outbox.resolve_outboxevent", "outbox.resolve_deadevent"],
    }

    def ready(self) -> None:
        """Make partitions once the last app is migrated; import what each app declares."""
        from django.apps import apps

        post_migrate.connect(make_partitions, sender=apps.get_app_config("orders"), dispatch_uid="partitions")
        post_migrate.connect(make_groups, sender=apps.get_app_config("orders"), dispatch_uid="groups")
        autodiscover_modules("metrics", "sums", "bulk_actions")
