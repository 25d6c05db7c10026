"""The processes of a local run under supervisord, which starts them in order and restarts those that exit.

It writes supervisord's configuration, and reads supervisord's log to see what happens.
"""

from __future__ import annotations

import fcntl
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from local.console import LogFollower, readable
from local.machine import PROJECT, LocalRunFailed, failed_part, guarded, tail

LONGEST_LOG, KEPT_LOGS = 10_000_000, 3  # bytes; older files of each log
STOP_SECONDS = 60  # a worker finishes its sends before it exits


class StartBarrier:
    """A locked file. The programs that wait for it start when `open` unlocks it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.unlink(missing_ok=True)  # the programs of an earlier run keep their lock of it
        self._file = path.open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def open(self) -> None:
        self._file.close()

    def before(self, *argv: str) -> list[str]:
        """Return `argv` after a wait for the gate."""
        return ["flock", "--shared", "--no-fork", str(self.path), *argv]


@dataclass(frozen=True, kw_only=True)
class Program:
    """One supervised process. `command` is guarded, and exits with supervisord."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    stop_signal: signal.Signals = signal.SIGTERM


class Supervisor:
    """A supervisord under this process."""

    def __init__(self, *, var: Path) -> None:
        self.logs = var / "log"
        self._configuration = var / "run" / "supervisord.conf"
        self._follower = LogFollower(self.logs / "supervisord.log")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *groups: Sequence[Program], environment: Mapping[str, str]) -> None:
        """Start supervisord. It starts the groups in their order, and stops them in the reverse."""
        self._configuration.write_text(configuration(groups, logs=self.logs))
        module = ["-m", "supervisor.supervisord"]
        supervisord = [sys.executable, *module, "--configuration", str(self._configuration)]
        with (self.logs / "supervisord.err").open("wb") as errors:
            self._process = subprocess.Popen(
                guarded(supervisord),
                cwd=PROJECT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                process_group=0,  # only this process handles a Ctrl-C, and stops all in order
            )

    def news(self) -> list[str]:
        """Return which programs have started or exited since the last call, in supervisord's words."""
        return re.findall(r" ((?:spawned|exited): .*)", "\n".join(self._follower.lines()))

    def check(self) -> None:
        """Raise LocalRunFailed, with the end of the log, if supervisord or a program has exited."""
        if self.has_ended():
            raise LocalRunFailed(f"supervisord has exited:\n{tail(log=self.logs / 'supervisord.err')}")
        for line in self.news():
            if exited := re.match(r"exited: (\w+)", line):
                log = self.logs / f"{exited[1]}.log"
                lines = "\n".join(map(readable, tail(log=log).splitlines()))
                raise LocalRunFailed(failed_part(f"{line}\nThe end of {log}:\n\n{lines}"))

    def rotate_logs(self) -> None:
        """Rename each log that is longer than LONGEST_LOG. Its writers open a new file and lose no line."""
        long = [log for log in self.logs.glob("*.log") if log.stat().st_size > LONGEST_LOG]
        for log in long:
            for number in range(KEPT_LOGS, 1, -1):
                with suppress(FileNotFoundError):
                    Path(f"{log}.{number - 1}").replace(f"{log}.{number}")
            log.replace(f"{log}.1")
        if long and self._process is not None:
            self._process.send_signal(signal.SIGUSR2)  # WatchedFileHandler needs no signal

    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def stop(self) -> None:
        """Stop everything in order. At a second signal kill all at once."""
        if self._process is not None:
            try:
                self._process.terminate()
                self._process.wait()
            except KeyboardInterrupt:
                self._process.kill()
                self._process.wait()


def configuration(groups: Sequence[Sequence[Program]], *, logs: Path) -> str:
    """Return supervisord's configuration."""
    section: dict[str, dict[str, object]] = {
        "supervisord": {
            "nodaemon": "true",
            "silent": "true",
            "logfile": logs / "supervisord.log",
            "logfile_maxbytes": 0,
            "pidfile": logs / "supervisord.pid",
            "directory": PROJECT,
        }
    }
    for priority, programs in enumerate(groups):
        names = ",".join(program.name for program in programs)
        section[f"group:{priority}"] = {"programs": names, "priority": priority}
        for program in programs:
            section[f"program:{program.name}"] = {
                "command": shlex.join(program.command),
                "environment": ",".join(f'{name}="{value}"' for name, value in program.environment.items()),
                "directory": PROJECT,
                "autorestart": "true",
                "startretries": 100,  # for more than an hour: each pause is a second longer
                "stopsignal": program.stop_signal.name.removeprefix("SIG"),
                "stopwaitsecs": STOP_SECONDS,
                "killasgroup": "true",
                "redirect_stderr": "true",
                # supervisord expands this value, and no other one, twice.
                "stdout_logfile": str(logs / f"{program.name}.log").replace("%", "%%"),
                "stdout_logfile_maxbytes": 0,  # `rotate_logs` rotates; the programs write there, too
            }
    return "\n".join(
        f"[{title}]\n"
        # A percent sign would begin an expansion.
        + "".join(f"{name} = {str(value).replace('%', '%%')}\n" for name, value in options.items())
        for title, options in section.items()
    )
