#!/usr/bin/env python
"""The command of each role, the same in containers, in local runs and in the tests.

The image has this module as the program `orderpost`. `orderpost worker` becomes that role's process. Any
other argument runs as a `manage.py` command, such as `orderpost status`. Further arguments are passed on.

This module imports only the standard library. A container's probe must start fast.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

WAIT_SECONDS = 3.0
#: Commands of manage.py that wait for the migrations if the roles do.
AFTER_THEM = ("first_login",)
#: The roles that run a command of manage.py, with its arguments.
MANAGE_COMMANDS = {
    "standby": ["drain_outbox", "--loop"],
    "relay": ["relay_outbox"],
    "consumer": ["consume_events"],
    "cdc": ["consume_cdc"],
    "partitions": ["keep_partitions"],
    "migrate": ["migrate", "--noinput"],
}
#: The values of every switch, in any case.
ON, OFF = ("on", "true", "1", "yes"), ("off", "false", "0", "no")
PROJECT = Path(__file__).resolve().parent.parent
ALL = "0.0.0.0"  # noqa: S104 - a container's web listens on each of its addresses


def commands(
    *, host: str = ALL, port: int = 8000, processes: int | None = None, threads: int | None = None
) -> dict[str, list[str]]:
    """Return the command of each role. `processes` and `threads` of each are for web: see config.web."""
    python = sys.executable
    celery = [python, "-m", "celery", "-A", "config", "--quiet"]
    return {
        "web": [
            *(python, "-m", "config.web", "--host", host, "--port", str(port)),
            *(("--workers", str(processes)) if processes else ()),
            *(("--threads", str(threads)) if threads else ()),
        ],
        "worker": [
            *(*celery, "worker", "--pool", "threads"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat"),
        ],
        "beat": [*celery, "beat"],
        **{role: [python, "manage.py", *words] for role, words in MANAGE_COMMANDS.items()},
    }


def number_from(name: str) -> int | None:
    """Return a positive whole number from the environment, or None if unset. Exit for any other value."""
    text = os.environ.get(name, "").strip()
    if text and (not (text.isascii() and text.isdigit()) or int(text) < 1):
        sys.exit(f"{name} must be a whole number from 1, and is {text!r}.")
    return int(text) if text else None


def parse_switch(name: str, value: str) -> bool:
    """Return whether the variable `name` is on with this `value`. Raise ValueError for other words."""
    word = value.strip().lower()
    if word not in ON + OFF:
        raise ValueError(f"{name} must be on or off (true or false, 1 or 0, yes or no), not {value!r}.")
    return word in ON


def switch_from(name: str, *, environ: Mapping[str, str]) -> bool:
    """Return whether a switch of `environ` is on. Unset and empty mean off. Exit for other words."""
    try:
        return parse_switch(name, environ.get(name, "").strip() or "off")
    except ValueError as error:
        sys.exit(str(error))


def wait_for_migrations(role: str = "") -> None:
    """Wait until the database answers and `migrate --check` finds every migration applied.

    Write each reason once. A restart would not help: keep the health file of `role` fresh meanwhile.
    """
    from runtime.telemetry.health import Health

    beating = Health(role=role) if role else None
    # If there is no handler, a container's process 1 ignores SIGTERM.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # An unknown variable stops the role `migrate`, but not the others.
    check = [sys.executable, "manage.py", "migrate", "--check", "--skip-checks"]
    told = ""
    while (done := subprocess.run(check, capture_output=True, text=True)).returncode:
        reason = done.stderr.strip().rpartition("\n")[2] or "some are not applied"
        if reason != told:
            sys.stderr.write(f"orderpost: waiting for the migrations: {reason}\n")
        told = reason
        if beating:
            beating.write()
        time.sleep(WAIT_SECONDS)
    if beating:
        with contextlib.suppress(OSError):
            beating.file.unlink(missing_ok=True)  # the role begins its own


def main(arguments: list[str]) -> None:
    """Replace this process by that of a role or a command of manage.py, which then gets the signals."""
    name, *rest = arguments or ["help"]
    table = commands(
        port=number_from("PORT") or 8000,
        processes=number_from("WEB_PROCESSES"),
        threads=number_from("WEB_THREADS"),
    )
    command = table.get(name, [sys.executable, "manage.py", name])
    os.chdir(PROJECT)
    waits = switch_from("WAIT_FOR_MIGRATIONS", environ=os.environ)
    if waits and name in {*table, *AFTER_THEM} - {"migrate"}:
        wait_for_migrations(name if name in table else "")
    os.execv(command[0], [*command, *rest])  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    sys.path[0] = str(PROJECT)  # and not this folder: `outbox` must be importable
    main(sys.argv[1:])
