"""Which permissions migrate has given to the groups that it makes."""

from __future__ import annotations

from django.db import models


class RoleGrant(models.Model):
    """A permission that `outbox.groups` gave to its group. It is given once: a shop may take it away."""

    pk = models.CompositePrimaryKey("role", "permission")
    role = models.CharField(max_length=50)  # the group's name
    permission = models.CharField(max_length=150)  # "app.codename"
    granted_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "role_grants"
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.permission} for {self.role}"
