"""The shops to which the users of the admin are bound."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, models

from runtime.binding import UNBOUND, Binding


class UserBinding(models.Model):
    """The shops that a user may see: `*` for all, `own` for own orders, and sources. Without a row, none."""

    # No foreign key in the database: creating one would lock the users' table.
    user = models.OneToOneField(
        settings.AUTH_USER_MODEL,
        primary_key=True,
        on_delete=models.CASCADE,
        related_name="+",
        db_constraint=False,
    )
    sources = models.JSONField(default=list, db_default=[])

    class Meta:
        db_table = "user_bindings"
        default_permissions = ()

    def __str__(self) -> str:
        return f"user {self.pk}: {Binding.of_words(self.sources)}"


def binding_of(user: Any) -> Binding:
    """Return the shops to which a user is bound. It takes one statement for each `user` object.

    A superuser is unbound. The primary answers, so that a binding counts from the next request on.
    """
    if user.is_superuser:
        return UNBOUND
    binding: Binding | None = getattr(user, "_binding", None)
    if binding is None:
        rows = UserBinding.objects.using(DEFAULT_DB_ALIAS).filter(user_id=user.pk)
        binding = Binding.of_words(rows.values_list("sources", flat=True).first() or ())
        user._binding = binding  # a request's user passes it on to the row that `has_perm` gets
    return binding
