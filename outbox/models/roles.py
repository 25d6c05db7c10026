"""The permissions that migrate has granted to its groups."""

from __future__ import annotations

from django.db import models


class RoleGrant(models.Model):
    """A permission that `outbox.groups` granted. It is granted only once, so that a shop can revoke it."""

    pk = models.CompositePrimaryKey("role", "permission")
    role = models.CharField(max_length=50)  # the group's name
    permission = models.CharField(max_length=150)  # "app.codename"
    granted_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "role_grants"
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.permission} for {self.role}"
