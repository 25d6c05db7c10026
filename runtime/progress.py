"""Show the progress of long commands: lines and a bar on a terminal, else JSON lines."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from django.core.management.base import OutputWrapper
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)


@contextmanager
def words_on_a_terminal() -> Iterator[None]:
    """Show a person no log lines below an error between the words of a command.

    Logs that go to a file or to a collector stay complete.
    """
    changed = [
        (handler, handler.level)
        for handler in logging.getLogger().handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream and handler.stream.isatty()
    ]
    for handler, level in changed:
        handler.setLevel(max(level, logging.ERROR))
    try:
        yield
    finally:
        for handler, level in changed:
            handler.setLevel(level)


class Reporter:
    """Prints steps. Call `report(step, **facts)` after each; `report("bytes", …)` only moves the bar."""

    def __init__(self, stdout: OutputWrapper) -> None:
        self._stdout = stdout
        self._bar: Progress | None = None
        self._tasks: dict[str, Any] = {}
        if stdout.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeElapsedColumn(),
                console=Console(),
                transient=True,
            )

    def __enter__(self) -> Reporter:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def __call__(self, step: str, **facts: Any) -> None:
        if step == "bytes":
            self._move(str(facts.get("partition", "")), int(facts["bytes"]))
        elif self._bar:
            rest = ", ".join(f"{key} {value}" for key, value in facts.items() if key != "partition")
            line = " ".join(part for part in (str(facts.get("partition", "")), step) if part)
            self._bar.console.print(f"{line}{': ' + rest if rest else ''}", markup=False, highlight=False)
        else:
            self._stdout.write(json.dumps({"step": step, **facts}, default=str))

    def _move(self, name: str, count: int) -> None:
        if not self._bar:
            return
        if name not in self._tasks:
            self._tasks[name] = self._bar.add_task(name, total=None)
        self._bar.advance(self._tasks[name], count)
