"""Wait for a state, which only a failure does for long, and give a module a clock of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

import pytest

#: Seconds. The drill of compose.yaml needs the most of it; a machine under load decides no test.
PATIENCE = 240.0

Found = TypeVar("Found")


def until(
    condition: Callable[[], Found],
    what: str = "it came true",
    *,
    seconds: float = PATIENCE,
    details: Callable[[], str] = lambda: "",
    meanwhile: Callable[[], object] | None = None,
) -> Found:
    """Wait until `condition` returns a true value, and return that.

    Call `meanwhile` before each further try. Without it, tries become rarer, because most cost a session of
    PostgreSQL, which would take the CPU from what they wait for. Raise AssertionError after `seconds`, with
    the text that `details` then returns.
    """
    began = time.monotonic()
    while not (outcome := condition()):
        waited = time.monotonic() - began
        assert waited < seconds, f"waited {seconds:g} s in vain until {what}\n{details()}"
        if meanwhile is None:
            time.sleep(min(max(waited / 10, 0.02), 0.3))
        else:
            meanwhile()
    return outcome


def replace_time(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, **functions: Callable[..., Any]
) -> None:
    """Replace functions of `time` as a module sees them.

    `module.time.sleep` is that of the whole process: its other threads would call the replacement, too, such
    as the one that measures how late it wakes, and what it does with the database would keep a session open.
    """
    monkeypatch.setattr(module, "time", SimpleNamespace(**{**vars(time), **functions}))
