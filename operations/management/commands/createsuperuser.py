"""Django's command, with a row of the audit. operations.apps puts it in the place of Django's."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.management.commands import createsuperuser
from django.db import transaction
from django.db.models.signals import post_save

from runtime.audit import command_actor, record
from runtime.models import AuditRow


class Command(createsuperuser.Command):
    def handle(self, *args: Any, **options: Any) -> None:
        # No transaction may be open while a person types.
        post_save.connect(_record_user, sender=self.UserModel)
        try:
            super().handle(*args, **options)
        finally:
            post_save.disconnect(_record_user, sender=self.UserModel)


def _record_user(sender: Any, instance: Any, **_: Any) -> None:
    row = AuditRow(
        kind=AuditRow.Kind.SETUP,
        act="Created a superuser.",
        subject_type=instance._meta.label_lower,
        subject_id=str(instance.pk),
        subject=instance.get_username(),
    )
    with transaction.atomic():
        record(row, by=command_actor())
