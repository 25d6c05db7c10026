"""The groups that migrate creates: viewer, support and operator.

Each app's AppConfig lists in `roles` the permissions that each group has beyond the one before it. Each
permission is granted once and recorded, so a later release can add one, and a shop's changes stay.
docs/guides/admin.md has a table of the permissions.
"""

from __future__ import annotations

from django.apps import apps
from django.contrib.auth.models import Group, Permission
from django.db import connections, transaction

from outbox.models import RoleGrant

#: Each has the permissions of those before it.
ROLES = ("viewer", "support", "operator")


def permissions_of(role: str) -> set[str]:
    """Return the permissions that the apps declare for a group, as "app.codename"."""
    found: set[str] = set()
    for each in ROLES[: ROLES.index(role) + 1]:
        for config in apps.get_app_configs():
            found.update(getattr(config, "roles", {}).get(each, ()))
    return found


def make_roles(*, using: str = "default") -> None:
    """Create the missing groups, and grant the permissions that were never granted.

    Do not change a group of the same name that a shop created, and do not recreate one that it deleted.
    """
    if RoleGrant._meta.db_table not in connections[using].introspection.table_names():
        return  # a migration to an earlier state
    for role in ROLES:
        with transaction.atomic(using=using):
            grants = RoleGrant.objects.using(using).filter(role=role)
            given = set(grants.values_list("permission", flat=True))
            group = Group.objects.using(using).filter(name=role).first()
            if (group is None) == bool(given):
                continue
            if group is None:
                group = Group.objects.using(using).create(name=role)
            wanted = _permissions(permissions_of(role) - given, using=using)
            group.permissions.add(*wanted.values())
            RoleGrant.objects.using(using).bulk_create(
                RoleGrant(role=role, permission=name) for name in sorted(wanted)
            )


def _permissions(names: set[str], *, using: str) -> dict[str, Permission]:
    """Return the existing permissions with these names."""
    codes = [name.partition(".")[2] for name in names]
    rows = Permission.objects.using(using).filter(codename__in=codes).select_related("content_type")
    found = {f"{row.content_type.app_label}.{row.codename}": row for row in rows}
    return {name: row for name, row in found.items() if name in names}
