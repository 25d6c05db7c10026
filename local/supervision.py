"""The processes of a local run under supervisord, which restarts those that exit. For `local`.

Each run writes supervisord's configuration and calls it by XML-RPC, on a free port of 127.0.0.1 with a new
password.
"""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
import xmlrpc.client
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from local.machine import HOST, PROJECT, LocalRunFailed, free_port, guarded, tail, write_private

LONGEST_LOG, KEPT_LOGS = 10_000_000, 3  # bytes; older files of each log
APPLICATION = "orderpost"  # supervisord's name for the group that starts after the database is ready
SUPERVISOR = "%(ENV_GUARD_PID)s"  # its process id, which its guard put into its environment


@dataclass(frozen=True, kw_only=True)
class Program:
    """One supervised process. `command` is guarded, with SUPERVISOR as its parent."""

    name: str
    command: Sequence[str]
    priority: int  # supervisord starts in this order and stops in the reverse
    stop_signal: signal.Signals = signal.SIGTERM
    stop_seconds: int = 10
    environment: Mapping[str, str] = field(default_factory=dict)


def supervised(*argv: str | Path, nice: int = 0) -> list[str]:
    """Return `argv` guarded so that its program exits with supervisord."""
    return guarded(argv, parent=SUPERVISOR, nice=nice)


class Supervisor:
    """A supervisord under this process.

    It starts `servers` at once and `application` by `start_application`.
    """

    def __init__(self, *, var: Path, servers: Sequence[Program], application: Sequence[Program]) -> None:
        self.logs = var / "log"
        self._run = var / "run"
        self._servers = servers
        self._application = application
        self._port = free_port()
        self._password = secrets.token_urlsafe(24)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, environment: Mapping[str, str]) -> None:
        """Start supervisord with the servers, and wait until it answers."""
        configuration = self._run / "supervisord.conf"
        write_private(configuration, self._configuration())
        supervisord = [sys.executable, "-m", "supervisor.supervisord", "--configuration", str(configuration)]
        with (self.logs / "supervisord.err").open("wb") as errors:
            self._process = subprocess.Popen(
                guarded(supervisord, parent=os.getpid()),
                cwd=PROJECT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                process_group=0,  # only this process handles a Ctrl-C, so that it can stop all in order
            )
        deadline = time.monotonic() + 20
        while True:
            try:
                self.programs()
            except OSError:
                if self.has_ended() or time.monotonic() > deadline:
                    log = tail(log=self.logs / "supervisord.err")
                    raise LocalRunFailed(f"supervisord did not start:\n{log}") from None
                time.sleep(0.05)
            else:
                return

    def start_application(self) -> None:
        self._rpc().supervisor.startProcessGroup(APPLICATION, False)

    def programs(self) -> list[dict[str, Any]]:
        """Return supervisord's record of each program: `name`, `statename`, `pid`.

        Raise OSError while supervisord does not answer.
        """
        return cast(list[dict[str, Any]], self._rpc().supervisor.getAllProcessInfo())

    def check(self) -> None:
        """Raise LocalRunFailed if supervisord or a program has exited for good."""
        if self.has_ended():
            raise LocalRunFailed(f"supervisord has exited. Its log is {self.logs / 'supervisord.log'}.")
        for program in self.programs():
            # BACKOFF is not final: supervisord starts the program again several times before it is FATAL.
            if program["statename"] in ("FATAL", "EXITED"):
                log = self.logs / f"{program['name']}.log"
                raise LocalRunFailed(f"{program['name']} exits as soon as it starts:\n{tail(log=log)}")

    def rotate_logs(self) -> None:
        """Rename each log that is longer than LONGEST_LOG. Its writers open a new file and lose no line.

        Raise OSError while supervisord does not answer.
        """
        long = [log for log in self.logs.glob("*.log") if log.stat().st_size > LONGEST_LOG]
        for log in long:
            for number in range(KEPT_LOGS, 1, -1):
                with suppress(FileNotFoundError):
                    Path(f"{log}.{number - 1}").replace(f"{log}.{number}")
            log.replace(f"{log}.1")
        if long:
            pid = cast(int, self._rpc().supervisor.getPID())
            os.kill(pid, signal.SIGUSR2)  # makes it open its logs again; WatchedFileHandler needs no signal

    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def stop_seconds(self) -> int:
        """Return the longest time in seconds that a stop in order can take."""
        return sum(server.stop_seconds for server in self._servers) + max(
            program.stop_seconds for program in self._application
        )

    def ask_to_stop(self) -> None:
        """Tell supervisord to stop everything in order, within `stop_seconds`."""
        if self._process is not None and not self.has_ended():
            self._process.terminate()

    def kill(self) -> None:
        """Kill supervisord. The guards then stop its programs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _rpc(self) -> xmlrpc.client.ServerProxy:
        return xmlrpc.client.ServerProxy(f"http://local:{self._password}@{HOST}:{self._port}/RPC2")

    def _configuration(self) -> str:
        section: dict[str, dict[str, object]] = {
            "supervisord": {
                "nodaemon": "true",
                "silent": "true",
                "logfile": _quoted(self.logs / "supervisord.log"),
                "logfile_maxbytes": 0,
                "pidfile": _quoted(self._run / "supervisord.pid"),
                "strip_ansi": str(not sys.stdout.isatty()).lower(),  # keep colours only for a terminal
                "directory": _quoted(PROJECT),
            },
            "inet_http_server": {
                "port": f"{HOST}:{self._port}",
                "username": "local",
                "password": self._password,
            },
            "rpcinterface:supervisor": {
                "supervisor.rpcinterface_factory": "supervisor.rpcinterface:make_main_rpcinterface"
            },
            f"group:{APPLICATION}": {
                "programs": ",".join(program.name for program in self._application),
                "priority": min(program.priority for program in self._application),
            },
        }
        for program in (*self._servers, *self._application):
            section[f"program:{program.name}"] = {
                "command": shlex.join(map(_quoted, program.command)).replace(_quoted(SUPERVISOR), SUPERVISOR),
                "environment": ",".join(f'{name}="{_quoted(v)}"' for name, v in program.environment.items()),
                "directory": _quoted(PROJECT),
                "priority": program.priority,
                "autostart": str(program in self._servers).lower(),
                "autorestart": "true",
                "startretries": 100,  # for more than an hour, because each pause is a second longer
                "stopsignal": program.stop_signal.name.removeprefix("SIG"),
                "stopwaitsecs": program.stop_seconds,
                "killasgroup": "true",
                "redirect_stderr": "true",
                "stdout_logfile": _quoted(self.logs / f"{program.name}.log"),
                "stdout_logfile_maxbytes": 0,  # `rotate_logs` rotates, because the programs write there, too
            }
        return "\n".join(
            f"[{title}]\n" + "".join(f"{name} = {value}\n" for name, value in options.items())
            for title, options in section.items()
        )


def _quoted(value: str | Path) -> str:
    """Double each percent sign, because it begins an expansion in supervisord's file."""
    return str(value).replace("%", "%%")
