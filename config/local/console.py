"""Print the logs of a local run's programs as they grow, each line with its program's name.

For `config.local`. The programs write to var/log through supervisord, which rotates the files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

COLOURS = (36, 32, 33, 35, 34)  # cyan, green, yellow, magenta, blue


class LogFollower:
    """Read what is appended to one file from now on, also across rotations."""

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


class Console:
    """The terminal: the logs of the named programs, and the local run's own messages."""

    def __init__(self, *, logs: Path, names: Sequence[str]) -> None:
        self._width = max(map(len, names))
        self._colours = {name: COLOURS[n % len(COLOURS)] for n, name in enumerate(names)}
        self._followers = {name: LogFollower(logs / f"{name}.log") for name in names}

    def pump(self) -> None:
        """Print what the programs have written since the last call."""
        for name, follower in self._followers.items():
            for line in follower.lines():
                label = f"{name:<{self._width}}"
                if sys.stdout.isatty():
                    label = f"\033[{self._colours[name]}m{label}\033[0m"
                print(f"{label} | {line}")
        sys.stdout.flush()

    def say(self, text: str) -> None:
        """Print a message of the local run itself."""
        print(text, flush=True)

    def close(self) -> None:
        for follower in self._followers.values():
            follower.close()
