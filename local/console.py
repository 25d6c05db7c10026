"""The terminal of a local run: the steps of its start, then warnings and sent e-mails."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

#: Of the lines with these levels, only those of sent e-mails are shown.
_QUIET = ('"level": "info"', '"level": "debug"')
_SENT = '"now": "sent"'
_UNSHOWN = (
    *("event", "level", "logger", "timestamp", "exception", "stack", "correlation_id"),
    *("service", "version", "role"),  # the label shows which program it is
)


class LogFollower:
    """Read the lines that are appended to one file from now on, also after it was replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        self._inode, self._position = path.stat().st_ino, path.stat().st_size

    def lines(self) -> list[str]:
        """Return the lines that were completed since the last call."""
        if not self.path.exists():  # it was renamed, and its writers have written nothing since
            return []
        with self.path.open("rb") as file:
            if (inode := os.fstat(file.fileno()).st_ino) != self._inode:
                self._inode, self._position = inode, 0
            file.seek(self._position)
            *lines, _ = file.read().split(b"\n")
        self._position += sum(len(line) + 1 for line in lines)
        return [line.decode(errors="replace") for line in lines]


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


def _sent(line: str) -> str:
    entry = json.loads(line)
    to, by = entry["recipient"], entry["provider"]
    return f"{entry['timestamp'][11:19]} e-mail sent: {entry['event_type']} to {to} by {by}"


class Console:
    """The steps of the start on one line, and then the important lines of the programs' logs."""

    def __init__(self, *, logs: Path, names: Sequence[str]) -> None:
        self._width = max(map(len, names))
        self._followers = [LogFollower(logs / f"{name}.log") for name in names]
        self._steps = 0

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Print what happens now, and then how long it took. All steps make one line."""
        print(f", {what}" if self._steps else what, end="", flush=True)
        began = time.monotonic()
        yield
        print(f" {time.monotonic() - began:.1f} s", end="", flush=True)
        self._steps += 1

    def pump(self) -> None:
        """Print the important lines that the programs have written since the last call."""
        for follower in self._followers:
            for line in follower.lines():
                if not any(mark in line for mark in _QUIET):
                    self.say(readable(line), program=follower.path.stem)
                elif _SENT in line:
                    self.say(_sent(line), program=follower.path.stem)

    def say(self, text: str, *, program: str = "") -> None:
        print(f"{program:<{self._width}} | {text}" if program else text, flush=True)
