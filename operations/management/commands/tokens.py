"""`manage.py tokens create|list|revoke`: create an API token, list all, or revoke one."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models.functions import Now

from notifications.connected import order_sources
from runtime.names import Reserved, refuse_reserved
from runtime.texts import name_invisible
from web.models import ApiToken, declared_scopes

ALL = "all"
_COLUMNS = ("created_at", "last_used_at", "expires_at", "revoked_at")


class Command(BaseCommand):
    help = (
        "Create an API token, list all, or revoke one. Only a hash of a token's secret is stored, so the "
        "secret is printed once."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        create = verbs.add_parser("create", help="create a token and print its secret on stdout")
        create.add_argument("name", metavar="NAME", help="the user of the token, shown in the admin")
        create.add_argument(
            "--scope",
            action="append",
            required=True,
            help=f"repeatable, or several with commas or blanks: {', '.join(declared_scopes())}, or {ALL}",
        )
        create.add_argument(
            "--source",
            default="",
            metavar="NAME",
            help="one of ORDER_SOURCES: the token sees its orders alone, and sends its events alone",
        )
        create.add_argument(
            "--expires-days", type=int, metavar="N", help="valid for N days (default: for ever)"
        )
        verbs.add_parser("list", help="all tokens, the newest first")
        revoke = verbs.add_parser("revoke", help="refuse a token from the next request on")
        revoke.add_argument("token", metavar="TOKEN", help="its id, or the prefix that the list shows")

    def handle(self, *_: Any, verb: str, **options: Any) -> None:
        if verb == "create":
            self._create(options["name"], options["scope"], options["source"], options["expires_days"])
        elif verb == "list":
            self._list()
        else:
            self._revoke(options["token"])

    def _create(self, name: str, scopes: list[str], source: str, days: int | None) -> None:
        name = name.strip()
        longest = ApiToken._meta.get_field("name").max_length or 0
        if invisible := name_invisible(name):
            raise CommandError(f"NAME: {invisible}")
        if not name or len(name) > longest or not name.isprintable():
            raise CommandError(f"NAME must have 1 to {longest} printable characters.")
        if days is not None and not 1 <= days <= 36_500:
            raise CommandError("--expires-days must be a number from 1 to 36500.")
        if len(source) > longest or not source.isprintable() or source == settings.EVENT_SOURCE:
            raise CommandError("--source must name one of ORDER_SOURCES.")
        try:
            refuse_reserved([source])
        except Reserved as error:
            raise CommandError(f"--source: {error}") from error
        if source and source not in order_sources():
            self.stderr.write(
                f"Events of {source} are refused until ORDER_SOURCES of all processes names it."
            )
        secret = ApiToken.new_secret()
        ApiToken.objects.create(
            name=name,
            prefix=secret[:12],
            digest=ApiToken.digest_of(secret),
            scopes=_scopes(scopes),
            source=source,
            expires_at=None if days is None else Now() + dt.timedelta(days=days),
        )
        self.stderr.write(f"Token {name!r} ({secret[:12]}…). Keep the secret, because it is not shown again.")
        self.stdout.write(secret)

    def _list(self) -> None:
        for row in ApiToken.objects.order_by("-id"):
            times = [f"{name.removesuffix('_at')} {_day(getattr(row, name))}" for name in _COLUMNS]
            words = [str(row.id), row.prefix, row.name, ",".join(row.scopes), *times]
            if row.source:
                words.append(f"only {row.source}")
            if row.is_unused():
                words.append(f"unused for {ApiToken.UNUSED_DAYS} days")
            self.stdout.write("  ".join(words))

    def _revoke(self, id_or_prefix: str) -> None:
        try:
            tokens = list(ApiToken.objects.filter(id=uuid.UUID(id_or_prefix)))
        except ValueError:
            tokens = list(ApiToken.objects.filter(prefix=id_or_prefix))
        if len(tokens) != 1:
            problem = "Several tokens have the prefix" if tokens else "There is no token"
            raise CommandError(
                f"{problem} {id_or_prefix}. Name one by its id, or by its prefix in `tokens list`."
            )
        (token,) = tokens
        if ApiToken.objects.filter(id=token.id, revoked_at=None).update(revoked_at=Now()):
            self.stdout.write(f"{token}: revoked")
        else:
            self.stdout.write(f"{token}: was revoked already")


def _scopes(texts: list[str]) -> list[str]:
    scopes = declared_scopes()
    words = [word for text in texts for word in re.split(r"[\s,]+", text) if word]
    wanted = set(scopes if ALL in words else words)
    unknown = sorted(set(words) - {*scopes, ALL})
    if unknown or not wanted:
        names = ", ".join((*scopes, ALL))
        raise CommandError(f"Unknown scope: {', '.join(unknown) or '(none)'}. Use {names}.")
    return sorted(wanted)


def _day(time: dt.datetime | None) -> str:
    return f"{time:%Y-%m-%d}" if time else "never"
