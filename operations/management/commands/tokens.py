"""`manage.py tokens create|list|rotate|revoke`: create an API token, list all, replace or end its secret."""

from __future__ import annotations

import datetime as dt
import ipaddress
import re
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone

from notifications.connected import order_sources
from runtime.audit import command_actor, record
from runtime.database.ids import parse_uuid
from runtime.models import AuditRow
from runtime.names import Reserved, refuse_reserved
from runtime.texts import name_invisible
from web.models import ApiToken, ApiTokenQuerySet, declared_scopes
from web.proxies import is_address_known

ALL = "all"
#: The longest overlap of two secrets.
MOST_OVERLAP = dt.timedelta(days=90)
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}
_COLUMNS = ("created_at", "last_used_at", "expires_at", "revoked_at")


class Command(BaseCommand):
    help = (
        "Create an API token, list all, give one a new secret, or revoke one. Only a hash of a token's secret"
        " is stored, so the secret is printed once."
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
        create.add_argument(
            "--networks",
            default="",
            metavar="NETWORKS",
            help="take the token only from these, such as 10.0.0.0/8,192.0.2.7",
        )
        verbs.add_parser("list", help="all tokens, the newest first")
        rotate = verbs.add_parser("rotate", help="give a token a new secret, and print it on stdout")
        rotate.add_argument(
            "token", metavar="NAME", help="its name, its id, or the prefix that the list shows"
        )
        rotate.add_argument(
            "--overlap",
            default="24h",
            metavar="TIME",
            help="how long the present secret is taken, too: 0, 30m, 24h, 7d (default: %(default)s)",
        )
        revoke = verbs.add_parser("revoke", help="refuse a token from the next request on")
        revoke.add_argument("token", metavar="TOKEN", help="its id, or a prefix that the list shows")

    def handle(self, *_: Any, verb: str, **options: Any) -> None:
        if verb == "create":
            self._create(
                options["name"],
                options["scope"],
                options["source"],
                options["expires_days"],
                _networks(options["networks"]),
            )
        elif verb == "list":
            self._list()
        elif verb == "rotate":
            self._rotate(options["token"], _overlap(options["overlap"]))
        else:
            self._revoke(options["token"])

    def _create(
        self, name: str, scopes: list[str], source: str, days: int | None, networks: list[str]
    ) -> None:
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
        with transaction.atomic():
            token = ApiToken.objects.create(
                name=name,
                prefix=secret[:12],
                digest=ApiToken.digest_of(secret),
                scopes=_scopes(scopes),
                source=source,
                expires_at=None if days is None else Now() + dt.timedelta(days=days),
                networks=networks,
            )
            limits = f" networks={','.join(networks)}" if networks else ""
            _record(token, f"Created. scopes={','.join(token.scopes)}{limits}")
        self.stderr.write(f"Token {name!r} ({secret[:12]}…). Keep the secret, because it is not shown again.")
        self.stdout.write(secret)

    def _list(self) -> None:
        for row in ApiToken.objects.order_by("-id"):
            times = [f"{name.removesuffix('_at')} {_day(getattr(row, name))}" for name in _COLUMNS]
            words = [str(row.id), row.prefix, row.name, ",".join(row.scopes), *times]
            if row.networks:
                words.append(f"from {','.join(row.networks)}")
            if row.previous_until and row.previous_until > timezone.now():
                before = " ".join(filter(None, ("the secret before", row.previous_prefix)))
                words.append(f"{before} until {row.previous_until:%Y-%m-%d %H:%M} UTC")
            if row.source:
                words.append(f"only {row.source}")
            if row.is_unused():
                words.append(f"unused for {ApiToken.UNUSED_DAYS} days")
            self.stdout.write("  ".join(words))

    def _rotate(self, name: str, overlap: dt.timedelta) -> None:
        with transaction.atomic():
            token = _lock_one(ApiToken.objects.live(), name, Q(prefix=name) | Q(name=name))
            secret = token.rotate(overlap=overlap)
            _record(token, f"Rotated: the secret before is taken for {overlap}.")
        self.stderr.write(f"{token}: the present secret is taken for {overlap} more. Keep the new one.")
        self.stdout.write(secret)

    def _revoke(self, name: str) -> None:
        with transaction.atomic():
            named = Q(prefix=name) | Q(previous_prefix=name, previous_until__gt=Now())
            token = _lock_one(ApiToken.objects.all(), name, named)
            is_revoked = token.revoked_at is not None
            if not is_revoked:
                ApiToken.objects.filter(id=token.id).update(revoked_at=Now())
                _record(token, "Revoked.")
        if not is_revoked:
            self.stdout.write(f"{token}: revoked")
        else:
            self.stdout.write(f"{token}: was revoked already")


def _lock_one(tokens: ApiTokenQuerySet, name: str, named: Q) -> ApiToken:
    """Return the one token with this id, or that is `named` so. Raise `CommandError`."""
    id = parse_uuid(name)
    rows = list(tokens.filter(Q(id=id) if id else named).select_for_update())
    if len(rows) != 1:
        problem = "Several tokens are called" if rows else "There is no token"
        raise CommandError(f"{problem} {name}. Name one by its id, or by its prefix in `tokens list`.")
    return rows[0]


def _record(token: ApiToken, act: str) -> None:
    row = AuditRow(
        kind=AuditRow.Kind.TOKEN,
        act=act,
        source=token.source or None,
        subject_type=token._meta.label_lower,
        subject_id=str(token.id),
        subject=str(token),
    )
    record(row, by=command_actor())


def _networks(text: str) -> list[str]:
    """Return the networks of `--networks`. Raise `CommandError`."""
    if not text.strip():
        return []
    if not is_address_known():
        raise CommandError(
            "--networks needs the client's address. Set TRUSTED_PROXIES first: without it, each request"
            " seems to come from the proxy."
        )
    try:
        return [str(ipaddress.ip_network(word)) for word in re.split(r"[\s,]+", text.strip())]
    except ValueError as error:
        raise CommandError(f"--networks: {error}. Use networks such as 10.0.0.0/8,192.0.2.7.") from None


def _overlap(text: str) -> dt.timedelta:
    """Return the time of `--overlap`. Raise `CommandError`."""
    match = re.fullmatch(r"0|([1-9]\d{0,3})([mhd])", text)
    overlap = dt.timedelta(**{_UNITS[match[2]]: int(match[1])}) if match and match[1] else dt.timedelta()
    if match is None or overlap > MOST_OVERLAP:
        raise CommandError(f"--overlap must be like 0, 30m, 24h or 7d, and at most {MOST_OVERLAP.days}d.")
    return overlap


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
