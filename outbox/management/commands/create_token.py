"""`manage.py create_token NAME --scope …`: create an API token and print its secret once."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models.functions import Now

from outbox.models import ApiToken

ALL = "all"


class Command(BaseCommand):
    help = (
        "Create an API token and print its secret on stdout. Only a hash is stored, so it is not shown again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="the user of the token, shown in the admin")
        parser.add_argument(
            "--scope",
            action="append",
            required=True,
            help=f"repeatable, or several with commas or blanks: {', '.join(ApiToken.SCOPES)}, or {ALL}",
        )
        parser.add_argument(
            "--source",
            default="",
            metavar="NAME",
            help="one of ORDER_SOURCES: the token sees its orders alone, and sends its events alone",
        )
        parser.add_argument(
            "--expires-days", type=int, metavar="N", help="valid for N days (default: for ever)"
        )

    def handle(self, *_: Any, **options: Any) -> None:
        name = options["name"].strip()
        longest = ApiToken._meta.get_field("name").max_length or 0
        if not name or len(name) > longest or not name.isprintable():
            raise CommandError(f"NAME must have 1 to {longest} printable characters.")
        days = options["expires_days"]
        if days is not None and not 1 <= days <= 36_500:
            raise CommandError("--expires-days must be a number from 1 to 36500.")
        source = options["source"]
        if len(source) > longest or not source.isprintable() or source == settings.EVENT_SOURCE:
            raise CommandError("--source must name one of ORDER_SOURCES.")
        if source and source not in settings.ORDER_SOURCES:
            self.stderr.write(
                f"Events of {source} are refused until ORDER_SOURCES of all processes names it."
            )
        secret = ApiToken.new_secret()
        ApiToken.objects.create(
            name=name,
            prefix=secret[:12],
            digest=ApiToken.digest_of(secret),
            scopes=_scopes(options["scope"]),
            source=source,
            expires_at=None if days is None else Now() + dt.timedelta(days=days),
        )
        self.stderr.write(f"Token {name!r} ({secret[:12]}…). Keep the secret, because it is not shown again.")
        self.stdout.write(secret)


def _scopes(given: list[str]) -> list[str]:
    words = [word for text in given for word in re.split(r"[\s,]+", text) if word]
    wanted = set(ApiToken.SCOPES if ALL in words else words)
    unknown = sorted(set(words) - {*ApiToken.SCOPES, ALL})
    if unknown or not wanted:
        known = ", ".join((*ApiToken.SCOPES, ALL))
        raise CommandError(f"Unknown scope: {', '.join(unknown) or '(none)'}. Use {known}.")
    return [scope for scope in ApiToken.SCOPES if scope in wanted]
