"""Deploy checks of the connections and of unknown variables."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Tags, Warning, register
from django.core.checks import Error as CheckError
from django.db import DEFAULT_DB_ALIAS, Error, connections

from outbox import cdc
from runtime.conditions import PRODUCTION
from runtime.names import RESERVED

#: The setting of each database, in the order in which one falls back to another.
_DATABASE_SETTINGS = {
    "default": "DATABASE_URL",
    "direct": "DIRECT_DATABASE_URL",
    "owner": "PARTITION_DATABASE_URL",
    "replica": "REPLICA_DATABASE_URL",
}
#: `prefer`, libpq's default, accepts a server that offers no TLS.
_TLS_MODES = {"require", "verify-ca", "verify-full"}


@register(Tags.security, PRODUCTION, deploy=True)
def check_tls(**_: Any) -> list[CheckMessage]:
    """Warn of each setting that connects to another host without requiring TLS. Show no password."""
    connections = [
        *databases_without_tls(settings.DATABASES, environ=os.environ),
        *brokers_without_tls(),
    ]
    return [
        Warning(f"{name} leads to {host} without TLS.", hint=hint, id="orderpost.W001")
        for name, host, hint in connections
    ]


@register(Tags.security, PRODUCTION, deploy=True)
def check_variables(**_: Any) -> list[CheckMessage]:
    """Return an error for each variable that looks like a setting and is none, with the closest setting."""
    return [
        CheckError(
            f"{name} is not a setting." + (f" Did you mean {closest}?" if closest else ""),
            hint="docs/reference/configuration.md lists the settings. Correct the variable or remove it.",
            id="orderpost.E001",
        )
        for name, closest in settings.UNKNOWN_VARIABLES.items()
    ]


@register(Tags.database)
def check_variables_before_migrating(
    *, databases: Collection[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Do the same for `migrate`, which begins each deployment. Only that command names databases."""
    return check_variables() if databases else []


#: The tables with names of shops, and their columns.
_NAMES = (
    ("a connection", "shop_connections", "source"),
    ("a mail profile", "mail_profiles", "source"),
    ("an API token", "api_tokens", "source"),
)


@register(Tags.database)
def check_names_of_shops(*, databases: Collection[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Refuse to migrate, which begins each deployment, if a shop has the name of a word of bindings.

    A release that allowed these names may have stored one. Settings are checked as they are read.
    """
    mistakes: list[CheckMessage] = []
    if not databases:
        return mistakes
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        existing = set(connections[DEFAULT_DB_ALIAS].introspection.table_names(cursor))
        for what, table, column in _NAMES:
            if table not in existing:
                continue
            cursor.execute(
                f"SELECT DISTINCT {column} FROM {table} WHERE {column} = ANY(%s)",  # noqa: S608 - `_NAMES`
                [sorted(RESERVED)],
            )
            for (name,) in cursor.fetchall():
                hint = "Give its shop another name, and delete the row, before you deploy this release."
                text = f"{what[0].upper()}{what[1:]} is named {name}, which is a word of bindings."
                mistakes.append(CheckError(text, hint=hint, id="orderpost.E002"))
    return mistakes


def databases_without_tls(
    databases: Mapping[str, Mapping[str, Any]], *, environ: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    """Yield the setting, the host and a hint for each remote database without required TLS.

    Yield a database only once if another setting falls back to it.
    """
    seen = set()
    for alias, name in _DATABASE_SETTINGS.items():
        if (database := databases.get(alias)) is None:
            continue
        options = database.get("OPTIONS", {})
        hosts = database.get("HOST") or options.get("host") or environ.get("PGHOST", "")
        mode = options.get("sslmode") or environ.get("PGSSLMODE", "")
        same = hosts, database.get("PORT"), database.get("USER"), database.get("NAME"), mode
        remote = [host for host in hosts.split(",") if not _is_local(host)]
        if remote and mode not in _TLS_MODES and same not in seen:
            yield name, ", ".join(remote), f"Add sslmode=verify-full, or at least sslmode=require, to {name}."
        seen.add(same)


def brokers_without_tls() -> Iterator[tuple[str, str, str]]:
    """Yield the setting, the host and a hint for Valkey, and for Kafka if something uses it."""
    url = urlsplit(settings.REDIS_URL)
    if url.scheme == "redis" and not _is_local(url.hostname or ""):
        yield "REDIS_URL", url.hostname or "", "Use a URL that begins with rediss://."
    protocol = str(settings.KAFKA_OPTIONS.get("security.protocol", "plaintext")).lower()
    if settings.KAFKA_BOOTSTRAP_SERVERS and not protocol.endswith("ssl"):
        servers = (urlsplit(f"//{server.strip()}") for server in settings.KAFKA_BOOTSTRAP_SERVERS.split(","))
        remote = [server.hostname for server in servers if not _is_local(server.hostname or "")]
        if remote and _uses_kafka():
            hint = "Set security.protocol in KAFKA_OPTIONS to SSL or SASL_SSL."
            yield "KAFKA_BOOTSTRAP_SERVERS", ", ".join(map(str, remote)), hint


def _uses_kafka() -> bool:
    """Return whether events go over Kafka, or consume_cdc has run within a week.

    Every process may have KAFKA_BOOTSTRAP_SERVERS, which proves nothing. This check also runs before the
    database exists. Return False if only the database could tell and it does not answer.
    """
    if settings.EVENT_TRANSPORT == "kafka":
        return True
    try:
        return cdc.has_run()
    except Error:
        return False


def _is_local(host: str) -> bool:
    """Return whether a host is this machine: an empty host, a socket's folder, or a loopback address."""
    if not host or host == "localhost" or host.startswith(("/", "@")):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
