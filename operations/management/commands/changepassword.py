"""Django's command, with a row of the audit. operations.apps puts it in the place of Django's."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.management.commands import changepassword

from operations.management.commands.createsuperuser import recorded_save


class Command(changepassword.Command):
    def handle(self, *args: Any, **options: Any) -> Any:
        with recorded_save("Changed password."):
            return super().handle(*args, **options)
