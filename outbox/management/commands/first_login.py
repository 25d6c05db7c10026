"""`manage.py first_login`: make the first administrator and an API token; print both once."""

from __future__ import annotations

import secrets
from io import StringIO
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction


class Command(BaseCommand):
    help = (
        "Make an administrator and an API token with all scopes, and print the password and the token. "
        "Do nothing if there is an administrator."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--username", default="admin", help="default: admin")

    def handle(self, *args: Any, username: str, **options: Any) -> None:
        users = get_user_model().objects
        if users.filter(is_superuser=True).exists():
            self.stdout.write("There is an administrator already: nothing is made, nothing is shown again.")
            return
        password, token = secrets.token_urlsafe(12), StringIO()
        with transaction.atomic():
            users.create_superuser(username=username, password=password)
            call_command("create_token", "first login", scope=["all"], stdout=token, stderr=StringIO())
        self.stdout.write(f"Admin      user {username}, password {password}")
        self.stdout.write(f"API token  {token.getvalue().strip()}")
        self.stdout.write("Neither is shown again. The admin can make more of both, and revoke them.")
