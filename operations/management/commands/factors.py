"""`manage.py factors reset NAME`: take the second factors away from a user who lost theirs."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser

from runtime.audit import command_actor
from web.login.factors import reset_factors


class Command(BaseCommand):
    help = (
        "Take all second factors of a user away, and end the user's sessions. The user sets one up again at"
        " the next login, so be sure that it was the user who asked you."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        reset = verbs.add_parser("reset", help="take the factors away")
        reset.add_argument("name", metavar="NAME", help="the user's name")

    def handle(self, *_: Any, name: str, **options: Any) -> None:
        user = get_user_model().objects.filter(username=name).first()
        if user is None:
            raise CommandError(f"No user has the name {name}.")
        count = reset_factors(user, by=command_actor())
        said = f"{name} had {count} second factor{'s' * (count != 1)} and has none now."
        self.stdout.write(f"{said} All sessions have ended.")
