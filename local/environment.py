"""The environment of a local run's processes, and var/local.env for a `manage.py` next to them.

A variable of the user's environment wins, as NAME or as NAME_FILE. The sandbox plays only the providers
without their own settings.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path

from local.machine import HOST, write_private
from notifications.providers.registry import DEFAULT, Declaration, declarations

KAFKA_NAMES = ("EVENT_TRANSPORT", "KAFKA_BOOTSTRAP_SERVERS")
#: The settings of the providers that the sandbox can play.
MAILBOX_NAMES = (
    "EMAIL_PROVIDERS",
    *(
        name
        for declared in declarations().values()
        if declared.sandbox
        for name in (*declared.sandbox, *filter(None, [declared.webhook_key]))
    ),
)
# The variables of var/local.env. The tests set each of them, so that a local run cannot affect the tests.
NAMES = (
    *("DATABASE_URL", "REDIS_URL", "SECRET_KEY", "HTTPS", "REQUIRE_MFA", "ORDER_SOURCES", "CONNECTION_KEY"),
    *KAFKA_NAMES,
    *MAILBOX_NAMES,
)


def is_given(name: str, *, environ: Mapping[str, str]) -> bool:
    """Return whether the environment has a value, directly or through a file."""
    return bool(environ.get(name) or environ.get(f"{name}_FILE"))


def complete(
    *,
    environ: Mapping[str, str],
    database_url: str | None,
    redis_url: str | None,
    kafka_servers: str | None = None,
    sandbox_port: int | None,
    secret_key_file: Path,
    connection_key_file: Path,
    webhook_keys_file: Path,
) -> dict[str, str]:
    """Return the environment of every process. Variables of `environ` win."""
    ours = {"HTTPS": "off", "REQUIRE_MFA": "off", "LOG_FORMAT": "json"}
    if database_url is not None:
        ours["DATABASE_URL"] = database_url
    if redis_url is not None:
        ours["REDIS_URL"] = redis_url
    if kafka_servers is not None:
        ours |= dict(zip(KAFKA_NAMES, ("kafka", kafka_servers), strict=True))
    if sandbox_port is not None:
        ours |= _mailbox_settings(environ=environ, port=sandbox_port, keys_file=webhook_keys_file)
    if not is_given("SECRET_KEY", environ=environ):
        if not secret_key_file.exists():  # create it once: sessions and hashes survive this run
            write_private(secret_key_file, secrets.token_urlsafe(50))
        ours["SECRET_KEY"] = secret_key_file.read_text().strip()
    if not is_given("CONNECTION_KEY", environ=environ):
        if not connection_key_file.exists():  # create it once: it reads the secrets of connections
            write_private(connection_key_file, secrets.token_urlsafe(50))
        ours["CONNECTION_KEY"] = connection_key_file.read_text().strip()
    whole = {name: value for name, value in environ.items() if value or name not in NAMES}
    for name, value in ours.items():
        if not is_given(name, environ=environ):
            whole[name] = value
    for name in ("NO_PROXY", "no_proxy"):  # reach the sandbox directly even if a company proxy is set
        whole[name] = ",".join(filter(None, [environ.get(name), HOST, "localhost"]))
    if database_url is not None:
        # libpq's variables could prevent a connection to the server that the run starts.
        whole = {name: value for name, value in whole.items() if not name.startswith("PG")}
    return whole


def write_local_env(path: Path, *, environment: Mapping[str, str]) -> None:
    """Write the variables for `manage.py`, quoted for dotenv."""
    lines = ["# Written by `make run`, for manage.py next to it; removed when the run ends.\n"]
    for name in NAMES:
        if environment.get(name):
            value = environment[name].replace("\\", "\\\\").replace("'", "\\'")
            lines.append(f"{name}='{value}'\n")
    write_private(path, "".join(lines))


def played(*, environ: Mapping[str, str]) -> list[Declaration]:
    """Return the configured providers that the sandbox plays: those with neither a key nor an address."""
    names = environ.get("EMAIL_PROVIDERS") or ""
    if path := environ.get("EMAIL_PROVIDERS_FILE"):
        names = Path(path).read_text()
    wanted = [name.strip() for name in (names.strip() or DEFAULT).split(",")]
    return [
        declared
        for name in wanted
        if (declared := declarations().get(name)) and declared.sandbox
        if not any(is_given(setting, environ=environ) for setting in declared.sandbox)
    ]


def _mailbox_settings(*, environ: Mapping[str, str], port: int, keys_file: Path) -> dict[str, str]:
    """Return the settings that point the played providers to the sandbox at `port`."""
    values = {"EMAIL_PROVIDERS": DEFAULT}
    keys = _webhook_keys(keys_file)
    for declared in played(environ=environ):
        for name, value in declared.sandbox.items():
            values[name] = value.format(sandbox=f"http://{HOST}:{port}")
        if declared.name in keys:
            values[declared.webhook_key] = keys[declared.name]["verifies"]
    return values


def _webhook_keys(path: Path) -> dict[str, dict[str, str]]:
    """Return each provider's webhook keys, one that signs and one that verifies. Create missing ones.

    The file belongs to this checkout. Only its owner may read it. The sandbox reads it, too.
    """
    keys: dict[str, dict[str, str]] = json.loads(path.read_text()) if path.exists() else {}
    makers = {name: declared.make_key for name, declared in declarations().items() if declared.make_key}
    if missing := makers.keys() - keys:
        for name in sorted(missing):
            signs, verifies = makers[name]()
            keys[name] = {"signs": signs, "verifies": verifies}
        write_private(path, json.dumps(keys, indent=1))
    return keys
