"""The environment of a local run's processes, and var/local.env for a `manage.py` beside them.

For `config.local`. A variable that is set already wins, as NAME or as NAME_FILE.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from config.local import mailbox
from config.local.files import is_given, write_private
from config.local.machine import HOST

KAFKA_NAMES = ("EVENT_TRANSPORT", "KAFKA_BOOTSTRAP_SERVERS")
# What var/local.env may hold. The tests set each of these, so that a local run never shows through.
NAMES = ("DATABASE_URL", "REDIS_URL", "SECRET_KEY", "HTTPS", *KAFKA_NAMES, *mailbox.NAMES)


def wants_sandbox(*, environ: Mapping[str, str]) -> bool:
    """Return whether some e-mails go to the sandbox."""
    return bool(mailbox.played(environ=environ))


def complete(
    *,
    environ: Mapping[str, str],
    database_url: str | None,
    redis_url: str | None,
    kafka_servers: str | None = None,
    sandbox_port: int | None,
    secret_key_file: Path,
    webhook_keys_file: Path,
) -> dict[str, str]:
    """Return the environment of every process: what is set already wins."""
    ours = {"HTTPS": "off", "LOG_FORMAT": "json"}
    if database_url is not None:
        ours["DATABASE_URL"] = database_url
    if redis_url is not None:
        ours["REDIS_URL"] = redis_url
    if kafka_servers is not None:
        ours |= dict(zip(KAFKA_NAMES, ("kafka", kafka_servers), strict=True))
    if sandbox_port is not None:
        ours |= mailbox.settings(environ=environ, port=sandbox_port, keys_file=webhook_keys_file)
    if not is_given("SECRET_KEY", environ=environ):
        ours["SECRET_KEY"] = secret_key(secret_key_file)
    whole = {name: value for name, value in environ.items() if value or name not in NAMES}
    for name, value in ours.items():
        if not is_given(name, environ=environ):
            whole[name] = value
    for name in ("NO_PROXY", "no_proxy"):  # the sandbox is never behind a company's proxy
        whole[name] = ",".join(filter(None, [environ.get(name), HOST, "localhost"]))
    if database_url is not None:
        # libpq's own variables could forbid a connection to the server that we start.
        whole = {name: value for name, value in whole.items() if not name.startswith("PG")}
    return whole


def secret_key(path: Path) -> str:
    """Return this checkout's SECRET_KEY; make it at the first run, readable by its owner alone."""
    if not path.exists():
        write_private(path, secrets.token_urlsafe(50))
    return path.read_text().strip()


def write_local_env(path: Path, *, environment: Mapping[str, str]) -> None:
    """Write the addresses for `manage.py`, quoted as dotenv reads them."""
    lines = ["# Written by `make run`, for manage.py beside it; removed when the run ends.\n"]
    for name in NAMES:
        if environment.get(name):
            value = environment[name].replace("\\", "\\\\").replace("'", "\\'")
            lines.append(f"{name}='{value}'\n")
    write_private(path, "".join(lines))
