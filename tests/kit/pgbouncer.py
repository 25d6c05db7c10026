"""pgbouncer with docker/pgbouncer/pgbouncer.ini, for tests. Debian's package is enough."""

from __future__ import annotations

import configparser
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from local.machine import HOST, PROJECT, account_for_postgres, free_port, guarded
from tests.kit.needs import needs
from tests.kit.waiting import PATIENCE, until

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
SETTINGS = PROJECT / "docker" / "pgbouncer" / "pgbouncer.ini"
#: Every flow then runs through pgbouncer: `PGBOUNCER=1 make test TESTS=tests/flows`.
WANTED = os.environ.get("PGBOUNCER") == "1"

needs_pgbouncer = needs("pgbouncer", PROGRAM)


class Pooler:
    """pgbouncer on `port`, before the server that listens on `server`; `changes` replace settings.

    `users` are names and what pg_authid has of their passwords. Without them it asks nobody for a password
    and logs everybody in as `orderpost`.
    """

    def __init__(self, *, server: int, users: Mapping[str, str] | None = None, **changes: str) -> None:
        assert PROGRAM is not None, "pgbouncer is not installed"
        self.port = free_port()
        self._server = server
        self._users = users
        self._changes = changes
        self._folder = tempfile.TemporaryDirectory(prefix="orderpost-pgbouncer-")
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, user: str = "orderpost", password: str = "") -> str:
        """Return the URL of the database `orderpost`."""
        return f"postgresql://{user}:{password}@{HOST}:{self.port}/orderpost"

    def __enter__(self) -> Pooler:
        folder = Path(self._folder.name)
        folder.chmod(0o755)  # pgbouncer refuses root, so that nobody reads it
        settings, users = folder / "pgbouncer.ini", folder / "userlist.txt"
        server = f"host={HOST} port={self._server}" + ("" if self._users else " user=orderpost")
        changes = {"listen_port": str(self.port), "auth_file": str(users)} | self._changes
        if not self._users:
            changes["auth_type"] = "any"
        users.write_text("".join(f'"{name}" "{secret}"\n' for name, secret in (self._users or {}).items()))
        text = configparser.ConfigParser(interpolation=None)
        text.read_string(SETTINGS.read_text())
        text["databases"] = {"orderpost": f"{server} dbname=orderpost", "*": server}
        text["pgbouncer"].update(changes)
        with settings.open("w") as file:
            text.write(file)
        command = guarded(
            [str(PROGRAM), str(settings)],
            account=account_for_postgres(),
        )
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            until(self._listens)
        except BaseException:
            self._process.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE)
        self._folder.cleanup()

    def log(self) -> str:
        """Return what pgbouncer wrote."""
        return (Path(self._folder.name) / "log").read_text()

    def _listens(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self.log()
        with socket.socket() as asking:
            return asking.connect_ex((HOST, self.port)) == 0
