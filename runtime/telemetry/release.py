"""The version of this program, and which of its processes this one is."""

from __future__ import annotations

import contextlib
import functools
import sys
import tomllib
from pathlib import Path

from runtime.telemetry import health

SERVICE = "orderpost"
PROJECT_FILE = Path(__file__).resolve().parent.parent.parent / "pyproject.toml"


@functools.cache
def version() -> str:
    with contextlib.suppress(OSError):
        return str(tomllib.loads(PROJECT_FILE.read_text())["project"]["version"])
    return "unknown"


def origin() -> dict[str, str]:
    """Return the fields of every line: the service, its version, and the role or the `manage.py` command."""
    return {"service": SERVICE, "version": version(), "role": health.role() or _COMMAND}


def _command(arguments: list[str]) -> str:
    """Return the command of `manage.py`, or an empty text for another program."""
    is_ours = len(arguments) > 1 and Path(arguments[0]).name == "manage.py"
    return arguments[1] if is_ours and not arguments[1].startswith("-") else ""


_COMMAND = _command(sys.argv)
