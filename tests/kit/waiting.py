"""Wait for a state. The whole suite uses this helper, and only a failure reaches its limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

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
