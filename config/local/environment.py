"""What the processes of a local run find in their environment, and var/local.env for `manage.py` beside them.

For `config.local`. Whatever the person has set wins, as NAME or as NAME_FILE.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from config.local.machine import HOST

# What var/local.env may hold. The tests set each of these, so that a local run never shows through.
NAMES = ("DATABASE_URL", "REDIS_URL", "SECRET_KEY", "SENDGRID_API_KEY", "SENDGRID_API_URL", "HTTPS")


def is_given(name: str, *, environ: Mapping[str, str]) -> bool:
    """This function will say whether the person has set a value, directly or through a file."""
    return bool(environ.get(name) or environ.get(f"{name}_FILE"))


def wants_sandbox(*, environ: Mapping[str, str]) -> bool:
    """This function will say whether e-mails go to the sandbox: they do unless a provider has been named."""
    return not any(is_given(name, environ=environ) for name in ("SENDGRID_API_KEY", "SENDGRID_API_URL"))


def complete(
    *,
    environ: Mapping[str, str],
    database_url: str | None,
    redis_url: str | None,
    sandbox_port: int | None,
    secret_key_file: Path,
) -> dict[str, str]:
    """This function will return the environment of every process: the person's, its gaps filled."""
    ours = {"HTTPS": "off", "LOG_FORMAT": "console"}
    if database_url is not None:
        ours["DATABASE_URL"] = database_url
    if redis_url is not None:
        ours["REDIS_URL"] = redis_url
    if sandbox_port is not None:
        ours["SENDGRID_API_KEY"] = "sandbox"
        ours["SENDGRID_API_URL"] = f"http://{HOST}:{sandbox_port}/v3/"
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
    """This function will return this checkout's SECRET_KEY, made at the first run, for its owner only."""
    if not path.exists():
        write_private(path, secrets.token_urlsafe(50))
    return path.read_text().strip()


def write_local_env(path: Path, *, environment: Mapping[str, str]) -> None:
    """This function will leave the addresses for `manage.py`; values are quoted as dotenv reads them."""
    lines = ["# Written by `make run`, for manage.py beside it; removed when the run ends.\n"]
    for name in NAMES:
        if environment.get(name):
            value = environment[name].replace("\\", "\\\\").replace("'", "\\'")
            lines.append(f"{name}='{value}'\n")
    write_private(path, "".join(lines))


def write_private(path: Path, text: str) -> None:
    """This function will replace a file in one step, readable by its owner alone."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    new.rename(path)
