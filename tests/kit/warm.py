"""Start programs of this project as forks of a process that has already imported their libraries.

A program's start takes a second of CPU, mostly to import Django, Celery and others.
`tests.kit.warm_process` imports them once for each test process, and forks for each program. A fork runs the
program from the project's own first import on, in the folder of a checkout, with its own environment,
process group and output.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from local.machine import PROJECT, guarded


class Program:
    """A program in a fork, with what the tests use of a `subprocess.Popen`.

    The warm process is its parent, and writes its exit status into a pipe.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdout: int,
        stderr: int,
        checkout: Path = PROJECT,
    ) -> None:
        """Start `command`, which begins with the path of Python. `checkout` may be another commit's."""
        self.args = list(command)
        self.returncode: int | None = None
        request = {
            "arguments": self.args[1:],
            "environment": dict(environment),
            "checkout": str(checkout),
        }
        self._status, status = os.pipe()
        os.set_blocking(self._status, False)
        try:
            with _lock:
                server = _server()
                socket.send_fds(server, [json.dumps(request).encode()], [stdout, stderr, status])
                self.pid = int(server.recv(100))
        finally:
            os.close(status)

    def poll(self) -> int | None:
        """Return the exit status as `Popen.returncode` has it, None while the program runs."""
        if self.returncode is None:
            with contextlib.suppress(BlockingIOError):
                # The pipe ends without a status if the warm process was killed; its programs died with it.
                self.returncode = int(os.read(self._status, 100) or -signal.SIGKILL)
                os.close(self._status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    timeout: float = 120.0,
    checkout: Path = PROJECT,
) -> subprocess.CompletedProcess[str]:
    """Run a program of a checkout, like `subprocess.run` with captured text."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        program = Program(
            command,
            environment=environment,
            stdout=stdout.fileno(),
            stderr=stderr.fileno(),
            checkout=checkout,
        )
        try:
            code = program.wait(timeout)
        finally:
            program.kill()
        texts = []
        for file in (stdout, stderr):
            file.seek(0)
            texts.append(file.read().decode())
        return subprocess.CompletedProcess(command, code, *texts)


_lock = threading.Lock()


@cache
def _server() -> socket.socket:
    """Start the warm process of this test process, from the main thread; both end together."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "tests.kit.warm_process", str(its.fileno())]
    with its:
        warm = subprocess.Popen(
            guarded(command),
            cwd=PROJECT,
            pass_fds=[its.fileno()],
            start_new_session=True,
        )
    atexit.register(warm.wait)
    atexit.register(ours.close)  # runs first
    return ours
