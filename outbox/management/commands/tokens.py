"""`manage.py tokens list|revoke`: list the API tokens, or revoke one."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models.functions import Now

from outbox.models import ApiToken

_COLUMNS = ("created_at", "last_used_at", "expires_at", "revoked_at")


class Command(BaseCommand):
    help = "Lists the API tokens, or revokes one. manage.py create_token makes them."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        verbs.add_parser("list", help="all tokens, the newest first")
        revoke = verbs.add_parser("revoke", help="refuse a token from the next request on")
        revoke.add_argument("token", metavar="TOKEN", help="its id, or the prefix that the list shows")

    def handle(self, *_: Any, verb: str, token: str = "", **__: Any) -> None:
        if verb == "revoke":
            self._revoke(token)
            return
        recorded_since = ApiToken.uses_recorded_since()
        for row in ApiToken.objects.order_by("-id"):
            times = [f"{name.removesuffix('_at')} {_day(getattr(row, name))}" for name in _COLUMNS]
            words = [str(row.id), row.prefix, row.name, ",".join(row.scopes), *times]
            if row.source:
                words.append(f"only {row.source}")
            if row.is_unused(recorded_since=recorded_since):
                words.append(f"unused for {ApiToken.UNUSED_DAYS} days")
            self.stdout.write("  ".join(words))

    def _revoke(self, given: str) -> None:
        try:
            found = list(ApiToken.objects.filter(id=uuid.UUID(given)))
        except ValueError:
            found = list(ApiToken.objects.filter(prefix=given))
        if len(found) != 1:
            problem = "Several tokens have the prefix" if found else "There is no token"
            raise CommandError(f"{problem} {given}. Name one by its id, or by its prefix in `tokens list`.")
        (token,) = found
        if ApiToken.objects.filter(id=token.id, revoked_at=None).update(revoked_at=Now()):
            self.stdout.write(f"{token}: revoked")
        else:
            self.stdout.write(f"{token}: was revoked already")


def _day(time: dt.datetime | None) -> str:
    return f"{time:%Y-%m-%d}" if time else "never"
