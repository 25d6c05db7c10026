"""The version of this program, for metrics, log lines and the API."""

from __future__ import annotations

import contextlib
import functools
import tomllib
from pathlib import Path

PROJECT_FILE = Path(__file__).resolve().parent.parent.parent / "pyproject.toml"


@functools.cache
def version() -> str:
    with contextlib.suppress(OSError):
        return str(tomllib.loads(PROJECT_FILE.read_text())["project"]["version"])
    return "unknown"
