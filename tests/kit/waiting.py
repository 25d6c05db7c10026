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
    meanwhile: Callable[[], object] = lambda: time.sleep(0.02),
) -> Found:
    """Wait until `condition` returns a true value, and return that.

    Call `meanwhile` before each further try. Raise AssertionError after `seconds`, with the text that
    `details` then returns.
    """
    deadline = time.monotonic() + seconds
    while not (outcome := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain until {what}\n{details()}"
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
