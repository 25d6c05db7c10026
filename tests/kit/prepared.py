"""A migrated cluster with an API token, made once for a test run; each `Shop` starts from a copy of it.

The processes of a parallel run share the folder that tests.kit.servers names in `FOLDER`. The first one that
needs the cluster makes it under a lock. A program without pytest, such as `python -m tests.chaos`, makes its
own one.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from local.machine import NOBODY, free_port
from local.servers import EmbeddedPostgres
from tests.kit import warm
from tests.kit.constants import move_constants
from tests.kit.waiting import PATIENCE

#: The environment variable with the folder of this test run.
FOLDER = "ORDERPOST_TESTS_FOLDER"
SETTINGS = {
    "SECRET_KEY": "not-secret-prepared-only",
    "EMAIL_PROVIDERS": "smtp",
    "HTTPS": "off",
    "REDIS_URL": "redis://127.0.0.1:1/0",  # neither command needs a broker; port 1 refuses
    "DATABASE_TIMEOUT": "60",
    "LOG_FORMAT": "json",
}


def copy_to(server: EmbeddedPostgres) -> str:
    """Copy the migrated cluster to where `server`, which has not started yet, expects its data.

    Return the secret of an API token with every scope.
    """
    made, token = _made()
    server.data.parent.mkdir(parents=True, exist_ok=True)
    if server.account == "nobody":
        os.chown(server.data.parent, NOBODY, NOBODY)
    subprocess.run(["cp", "-a", "--reflink=auto", made, server.data], check=True, timeout=PATIENCE)
    return token


def remove(folder: Path) -> None:
    """Delete a test run's cluster, which may be outside the run's folder (EmbeddedPostgres says when)."""
    _server(folder).remove()


@cache
def _made() -> tuple[Path, str]:
    """Return the data directory and the token. Make both if no process of this run has made them."""
    folder, token = _folder(), _folder() / "prepared.token"
    with (folder / "prepared.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        server = _server(folder)
        if not token.exists():
            server.remove()  # a process may have died while it made this
            secret = _make(server, log=folder / "prepared.log")
            token.write_text(secret)
    return server.data, token.read_text()


def _make(server: EmbeddedPostgres, *, log: Path) -> str:
    server.start(log=log)
    try:
        environment = move_constants({**os.environ, **SETTINGS, "DATABASE_URL": server.url})
        for name in ("DIRECT_DATABASE_URL", "PARTITION_DATABASE_URL"):
            environment.pop(name, None)
        _manage(environment, "migrate", "--verbosity", "0")
        return _manage(environment, "tokens", "create", "flow", "--scope", "all").strip()
    finally:
        server.stop()


def _manage(environment: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "manage.py", *arguments]
    done = warm.run(command, environment=environment, timeout=300)
    done.check_returncode()
    return done.stdout


def _server(folder: Path) -> EmbeddedPostgres:
    return EmbeddedPostgres(data=folder / "prepared", port=free_port(), throwaway=True)


@cache
def _folder() -> Path:
    if FOLDER in os.environ:
        return Path(os.environ[FOLDER])
    folder = Path(tempfile.mkdtemp(prefix="orderpost-prepared-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(remove, folder)  # runs first
    return folder
