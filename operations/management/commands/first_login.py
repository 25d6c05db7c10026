"""`manage.py first_login`: create the first administrator and an API token, and print both once."""

from __future__ import annotations

import secrets
from io import StringIO
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction

from runtime.audit import act_on_user, command_actor, record


class Command(BaseCommand):
    help = (
        "Create an administrator and an API token with all scopes, and print the password and the token. "
        "Do nothing if an administrator exists."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--username", default="admin", help="default: admin")

    def handle(self, *args: Any, username: str, **options: Any) -> None:
        users = get_user_model().objects
        if users.filter(is_superuser=True).exists():
            self.stdout.write(
                "An administrator already exists, so nothing was created. Old secrets are not shown again."
            )
            return
        password, token = secrets.token_urlsafe(12), StringIO()
        with transaction.atomic():
            user = users.create_superuser(username=username, password=password)
            record(act_on_user(user, "Created the first administrator."), by=command_actor())
            create = ("tokens", "create", "first login", "--scope", "all")
            call_command(*create, stdout=token, stderr=StringIO())
        self.stdout.write(f"Admin      user {username}, password {password}")
        self.stdout.write(f"API token  {token.getvalue().strip()}")
        self.stdout.write("Neither is shown again. You can create and revoke both in the admin.")
