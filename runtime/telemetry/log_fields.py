"""Which process wrote a log line."""

from __future__ import annotations

import sys
from pathlib import Path

from runtime.telemetry import health
from runtime.telemetry.release import version

SERVICE = "orderpost"


def origin() -> dict[str, str]:
    """Return the fields of every line: the service, its version, and the role or the `manage.py` command."""
    return {"service": SERVICE, "version": version(), "role": health.role() or _COMMAND}


def _command(arguments: list[str]) -> str:
    """Return the command of `manage.py`, or an empty text for another program."""
    is_ours = len(arguments) > 1 and Path(arguments[0]).name == "manage.py"
    return arguments[1] if is_ours and not arguments[1].startswith("-") else ""


_COMMAND = _command(sys.argv)
