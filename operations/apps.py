"""Create the staff's groups, and load what the apps declare."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.apps import apps as global_apps
from django.apps.registry import Apps
from django.contrib.admin import apps as admin_apps
from django.core.management import get_commands
from django.db import transaction
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules

from operations.former_migrations import refuse_former_database

#: The groups that migrate creates, with the groups whose permissions each also has. Each app's
#: `AppConfig.roles` lists the permissions of a group beyond those. docs/guides/admin.md has a table of them.
ROLES = {
    "viewer": (),
    "support": (),
    "operator": ("viewer", "support"),
    "editor": ("viewer",),
}


def permissions_of(role: str) -> set[str]:
    """Return the permissions that the apps declare for a group, as "app.codename"."""
    configs = global_apps.get_app_configs()
    wanted = (role, *ROLES[role])
    return {
        name for config in configs for each in wanted for name in getattr(config, "roles", {}).get(each, ())
    }


def make_groups(*, using: str, apps: Apps = global_apps, **_: Any) -> None:
    """Create the missing ones of the groups in `ROLES` at the end of every migrate.

    A shop may have changed a group. Never change one that exists: a later release grants a further permission
    in a data migration. Create no group before all its permissions exist, as in a migration to an earlier
    state.
    """
    try:
        groups = apps.get_model("auth", "Group").objects.using(using)
        permissions = apps.get_model("auth", "Permission").objects.using(using)
    except LookupError:
        return
    existing = set(groups.values_list("name", flat=True))
    for role in ROLES:
        names = permissions_of(role)
        codes = [name.partition(".")[2] for name in names]
        rows = permissions.filter(codename__in=codes).select_related("content_type")
        granted = [row for row in rows if f"{row.content_type.app_label}.{row.codename}" in names]
        if role not in existing and len(granted) == len(names):
            with transaction.atomic(using=using):
                groups.create(name=role).permissions.set(granted)


class SiteConfig(admin_apps.AdminConfig):
    """Django's admin with orderpost's site."""

    default_site = "operations.site.Site"
    default = False


class OperationsConfig(AppConfig):
    name = "operations"
    default = True
    roles = {"viewer": ["admin.view_logentry"], "support": ["admin.view_logentry"]}
    shop_rights = ("admin.view_logentry",)  # the audit, of which a bound user sees their shops' acts

    def ready(self) -> None:
        """Refuse a former database, create the groups after every migrate, and import the declarations."""
        from operations import checks  # noqa: F401 - registers them
        from web.login import sessions  # noqa: F401 - writes the times of a login

        for command in ("changepassword", "createsuperuser"):
            get_commands()[command] = self.name  # Django prefers that of the app that is listed first
        connection_created.connect(refuse_former_database, dispatch_uid="former database")
        # The last app that has tables: then the permissions of all apps exist.
        post_migrate.connect(
            make_groups, sender=global_apps.get_app_config("connections"), dispatch_uid="groups"
        )
        autodiscover_modules("conditions", "metrics", "sums", "bulk_actions")
