"""Run `make run` from a copy of any checkout, whose own var/ does not change."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.rig import TICK, cpu_of_tree
from local.machine import HOST, PROJECT, free_port

READY_SECONDS = 240
#: The class of a process, by the first pattern that its command line has.
KINDS = {
    "web": r"config\.web|granian",
    "worker": r"celery .*\bworker\b",
    "beat": r"celery .*\bbeat\b",
    "PostgreSQL": r"postgres",
    "Valkey": r"valkey",
    "mailbox": r"local\.sandbox",
    "background": r"local\.background",
    "poller": r"drain_outbox",
    "relay": r"relay_outbox",
    "consumer": r"consume_events",
    "partitions": r"keep_partitions",
    "supervisor and console": r"supervisor|local|make",
}


class Shop:
    """`make run` for a `with` block. `settings` are its environment variables."""

    def __init__(self, checkout: Path = PROJECT, **settings: str) -> None:
        self.checkout = checkout.resolve()
        self.port = free_port()
        self.settings = settings
        self._folder = tempfile.TemporaryDirectory(prefix="orderpost-bench-")
        self.copy = Path(self._folder.name) / "shop"
        self._process: subprocess.Popen[bytes] | None = None
        self._session: psycopg.Connection[Any] | None = None

    def __enter__(self) -> Shop:
        try:
            self._copy()
            inherited = {
                name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")
            }
            with (self.copy / "make.log").open("wb") as log:
                self._process = subprocess.Popen(
                    ["make", "run"],
                    cwd=self.copy,
                    env=inherited | {"PORT": str(self.port)} | self.settings,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            self._wait()
            lines = (self.copy / "var" / "local.env").read_text()
            match = re.search(r"^DATABASE_URL=['\"]?([^'\"\s]+)", lines, re.MULTILINE)
            assert match, "make run has left no DATABASE_URL in var/local.env"
            self.dsn = match[1]
            words = ["create_token"] if self._has_command("create_token") else ["tokens", "create"]
            self.token = self._python("manage.py", *words, "bench", "--scope", "all").split()[-1]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            self._session.close()
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGINT)  # Ctrl-C
            try:
                self._process.wait(90)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        subprocess.run(["make", "clean"], cwd=self.copy, stdout=subprocess.DEVNULL, check=False)
        self._folder.cleanup()

    def _copy(self) -> None:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=self.checkout,
            stdout=subprocess.PIPE,
            check=True,
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (source := self.checkout / name).is_file():
                target = self.copy / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        (self.copy / ".venv").symlink_to(self.checkout / ".venv")

    def _wait(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + READY_SECONDS
        log = self.copy / "make.log"
        while "orderpost is up" not in log.read_text(errors="replace"):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"make run did not start:\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.2)

    def _python(self, *arguments: str) -> str:
        command = [str(self.copy / ".venv" / "bin" / "python"), *arguments]
        done = subprocess.run(command, cwd=self.copy, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout

    def _has_command(self, name: str) -> bool:
        """Return whether the checkout has a command. b4f9e77 names some in other words."""
        return name in self._python("manage.py", "help", "--commands").split()

    def load(self, *, rate: float, orders: int, run: str) -> dict[str, Any]:
        """Place and pay orders at a rate. Return the load client's results."""
        connections = max(32, int(rate))  # as many customers as arrive in a second
        plan = {"host": HOST, "port": self.port, "token": self.token, "run": run, "rate": rate}
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(PROJECT / "benchmarks" / "load.py")],
            input=json.dumps(plan | {"orders": orders, "connections": connections}),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        seen: dict[str, Any] = json.loads(done.stdout)
        return seen

    def query(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        if self._session is None:  # reused: a new one costs PostgreSQL a process
            self._session = psycopg.connect(self.dsn, autocommit=True)
        return self._session.execute(sql.encode(), parameters or None).fetchall()

    def processes(self) -> list[tuple[int, str, str, float]]:
        """Return id, class, command line and CPU seconds of every process that `make run` has started."""
        assert self._process is not None
        processes = []
        for pid, used in cpu_of_tree(self._process.pid).items():
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            kind = next((kind for kind, pattern in KINDS.items() if re.search(pattern, line)), "other")
            processes.append((pid, kind, line.strip(), used))
        return processes

    def cpu(self) -> dict[str, float]:
        """Return the CPU seconds of each class so far, including those of exited children."""
        total: dict[str, float] = {}
        for _, kind, _, used in self.processes():
            total[kind] = total.get(kind, 0.0) + used
        return total

    def memory(self) -> float:
        """Return the megabytes of all processes, shared pages divided among them (PSS)."""
        kilobytes = 0
        for pid, *_ in self.processes():
            try:
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            except OSError:
                continue
            kilobytes += int(re.search(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)[1])  # type: ignore[index]
        return kilobytes / 1024

    def facts(self) -> dict[str, str]:
        """Return the effective settings that affect the figures."""
        web = next((line for _, kind, line, _ in self.processes() if kind == "web"), "")
        shown = {name: self.query(f"SHOW {name}")[0][0] for name in ("synchronous_commit", "fsync")}
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=self.checkout, stdout=subprocess.PIPE, text=True
        )
        counted = dict.fromkeys(kind for _, kind, *_ in self.processes())
        return {
            "commit": commit.stdout.strip(),
            **self.settings,
            "web": " ".join(re.findall(r"--(?:workers|threads) \S+", web)) or "config.web's defaults",
            **{f"PostgreSQL's {name}": value for name, value in shown.items()},
            "processes": ", ".join(counted),
        }


def busy() -> float:
    """Return the CPU seconds that the machine has used since it started."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, irq, softirq = map(int, fields[:7])
    return (user + nice + system + irq + softirq) / TICK
