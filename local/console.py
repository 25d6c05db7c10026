"""Print the important lines of a local run's logs as they grow, each with its program's name. For `local`.

The programs write JSON lines to var/log, and supervisord writes their other output there. The console prints
all warnings, errors and lines that are not JSON. It prints only a few of the other lines, which suffice to
see a request and its e-mail, so that it stays readable and cheap under load.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

#: The lines below a warning that are printed: at most BURST at once, and then RATE per second.
BURST, RATE = 20, 2
SUMMARY_SECONDS = 10
_QUIET = ('"level": "info"', '"level": "debug"')
_UNSHOWN = (
    *("event", "level", "logger", "timestamp", "exception", "stack", "correlation_id"),
    *("service", "version", "role"),  # the label shows which program it is
)
COLOURS = (36, 32, 33, 35, 34)  # cyan, green, yellow, magenta, blue


class LogFollower:
    """Read the lines that are appended to one file from now on, also across rotations."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None
        self._rest = b""
        with suppress(FileNotFoundError):
            self._file = path.open("rb")
            self._file.seek(0, os.SEEK_END)

    def lines(self) -> list[str]:
        """Return the lines that were completed since the last call."""
        chunks: list[bytes] = []
        if self._file is not None:
            chunks.append(self._file.read())
        if self._has_moved_on():
            self.close()
            with suppress(FileNotFoundError):
                self._file = self.path.open("rb")
                chunks.append(self._file.read())
        *lines, self._rest = (self._rest + b"".join(chunks)).split(b"\n")
        return [line.decode(errors="replace").rstrip("\r") for line in lines]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _has_moved_on(self) -> bool:
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False
        if self._file is None:
            return True
        here = os.fstat(self._file.fileno())
        return here.st_ino != there.st_ino or there.st_size < self._file.tell()


def readable(line: str) -> str:
    """Return a line of JSON as text: time, level (unless info), event and facts. Return other lines as is."""
    try:
        entry = json.loads(line)
        text = f"{entry['timestamp'][11:19]} {entry['event']}"
    except (ValueError, KeyError, TypeError):
        return line
    level = str(entry.get("level", ""))
    facts = [f"{key}={value}" for key, value in entry.items() if key not in _UNSHOWN and value != ""]
    traces = [str(entry[key]) for key in ("stack", "exception") if entry.get(key)]
    level = "" if level in ("", "info") else f"{level.upper()} "
    return "\n".join([" ".join([level + text, *facts]), *traces])


class Console:
    """The terminal: the logs of the named programs, and the local run's own messages."""

    def __init__(self, *, logs: Path, names: Sequence[str]) -> None:
        self._logs = logs
        self._width = max(map(len, names))
        self._colours = {name: COLOURS[n % len(COLOURS)] for n, name in enumerate(names)}
        self._followers = {name: LogFollower(logs / f"{name}.log") for name in names}
        self._left, self._filled = float(BURST), time.monotonic()
        self._hidden, self._summed = 0, 0.0

    def pump(self) -> None:
        """Print the important lines that the programs have written since the last call."""
        now = time.monotonic()
        self._left = min(BURST, self._left + (now - self._filled) * RATE)
        self._filled = now
        if self._hidden and now - self._summed > SUMMARY_SECONDS:
            print(f"… and {self._hidden} more lines in {self._logs}")
            self._hidden, self._summed = 0, now
        for name, follower in self._followers.items():
            for line in follower.lines():
                if any(mark in line for mark in _QUIET):
                    if self._left < 1:
                        self._hidden += 1
                        continue
                    self._left -= 1
                line = readable(line)
                label = f"{name:<{self._width}}"
                if sys.stdout.isatty():
                    label = f"\033[{self._colours[name]}m{label}\033[0m"
                print(f"{label} | {line}")
        sys.stdout.flush()

    def say(self, text: str) -> None:
        print(text, flush=True)

    def close(self) -> None:
        for follower in self._followers.values():
            follower.close()
