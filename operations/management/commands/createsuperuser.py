"""Django's command, with a row of the audit. operations.apps puts it in the place of Django's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.management.commands import createsuperuser
from django.db import transaction
from django.db.models.signals import post_save

from runtime.audit import act_on_user, command_actor, record


class Command(createsuperuser.Command):
    def handle(self, *args: Any, **options: Any) -> None:
        with recorded_save("Created a superuser."):
            super().handle(*args, **options)


@contextlib.contextmanager
def recorded_save(act: str) -> Iterator[None]:
    """Record the act right after a user is saved. No transaction may be open while a person types."""

    def record_user(sender: Any, instance: Any, **_: Any) -> None:
        with transaction.atomic():
            record(act_on_user(instance, act), by=command_actor())

    users = get_user_model()
    post_save.connect(record_user, sender=users)
    try:
        yield
    finally:
        post_save.disconnect(record_user, sender=users)
