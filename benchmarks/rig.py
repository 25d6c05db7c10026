"""Start a benchmark's servers and processes on free ports, measure CPU by class, and stop them."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psycopg

from local.machine import HOST, PROJECT, free_port, guarded
from local.servers import EmbeddedPostgres, EmbeddedValkey

TICK = os.sysconf("SC_CLK_TCK")


class Rig:
    """PostgreSQL and Valkey for a `with` block, and the processes that `run` starts.

    `settings` are environment variables of every process.
    """

    def __init__(self, **settings: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="orderpost-bench-")
        self.folder = Path(self._folder.name)
        self.postgres = EmbeddedPostgres(data=self.folder / "postgres", port=free_port())
        self.valkey = EmbeddedValkey(data=self.folder / "valkey", port=free_port())
        self.provider_port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.settings = settings

    def __enter__(self) -> Rig:
        try:
            self.postgres.start(log=self.folder / "postgres.log")
            self.valkey.start(log=self.folder / "valkey.log")
            self.python("-m", "manage", "migrate", "--verbosity", "0")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.processes):
            self.stop(name)
        for server in (self.valkey, self.postgres):
            server.stop()
            server.remove()
        self._folder.cleanup()

    def environment(self, **settings: str) -> dict[str, str]:
        """Return the environment of a process."""
        inherited = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
        return {
            **inherited,
            "DATABASE_URL": self.postgres.url,
            "REDIS_URL": self.valkey.url,
            "EMAIL_PROVIDERS": "sendgrid",
            "WEBHOOKS_UNSIGNED": "on",
            "SENDGRID_API_KEY": "benchmark",
            "SENDGRID_API_URL": f"http://{HOST}:{self.provider_port}/v3/",
            "SECRET_KEY": "not-secret-benchmarks-only",
            "HTTPS": "off",
            "LOG_FORMAT": "json",
            **self.settings,
            **settings,
        }

    def python(self, *arguments: str) -> str:
        """Run Python and return its output."""
        done = subprocess.run(
            guarded([sys.executable, *arguments]),
            cwd=PROJECT,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            timeout=1800,
            check=True,
        )
        return done.stdout

    def start_provider(self, *, delay: float) -> None:
        """Start the cheap provider, which answers after `delay` seconds."""
        self.run(
            "provider",
            [sys.executable, "-m", "benchmarks.provider", str(self.provider_port), str(delay)],
        )
        _until_answered(f"http://{HOST}:{self.provider_port}/count")

    def provided(self) -> int:
        """Return how many mails the cheap provider has accepted."""
        with urllib.request.urlopen(f"http://{HOST}:{self.provider_port}/count", timeout=10) as answer:
            return int(answer.read())

    def run(self, name: str, command: Iterable[str], *, pipes: bool = False, **settings: str) -> None:
        """Start a command in the background under a name."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                guarded(list(command)),
                cwd=PROJECT,
                env=self.environment(**settings),
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self, name: str) -> None:
        """Stop a process and its children. Kill them after 20 seconds."""
        process = self.processes.pop(name)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def pause(self, name: str) -> None:
        """Freeze a process and its children by SIGSTOP."""
        os.killpg(self.processes[name].pid, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Continue a frozen process and its children."""
        os.killpg(self.processes[name].pid, signal.SIGCONT)

    def query(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with psycopg.connect(self.postgres.url, autocommit=True) as connection:
            cursor = connection.execute(sql.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def cpu(self) -> dict[str, float]:
        """Return the CPU seconds that each class of processes has used so far."""
        roots = [(name, process.pid) for name, process in self.processes.items()]
        for name, server in (("postgres", self.postgres), ("valkey", self.valkey)):
            assert server._process is not None
            roots.append((name, server._process.pid))
        total: dict[str, float] = {}
        for name, root in roots:
            kind = name.partition(":")[0]
            total[kind] = total.get(kind, 0.0) + sum(cpu_of_tree(root).values())
        return total


def cpu_of_tree(root: int) -> dict[int, float]:
    """Return the CPU seconds of a process and its descendants, including exited ones."""
    children: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just exited
        used[int(folder.name)] = sum(map(int, fields[11:15])) / TICK
        children.setdefault(int(fields[1]), []).append(int(folder.name))
    tree, todo = {}, [root]
    while todo:
        pid = todo.pop()
        todo += children.get(pid, [])
        tree[pid] = used.get(pid, 0.0)
    return tree


def own_cpu() -> float:
    """Return the CPU seconds of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _until_answered(url: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
