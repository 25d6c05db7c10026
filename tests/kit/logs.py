"""Log lines as a process ships them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from config import logs


@contextlib.contextmanager
def shipped_to(stream: Any) -> Iterator[None]:
    """Write this process's log lines to `stream`, as JSON."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    logs.configure({"level": "INFO", "format": "json"})
    (handler,) = root.handlers
    handler.setStream(stream)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        root.handlers, root.level = before, level
