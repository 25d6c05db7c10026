"""Which process wrote a log line, and the names of its fields in the Elastic Common Schema (LOG_FORMAT=ecs).

config.logs writes these names, and log_files reads them back.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from outbox.telemetry import health
from outbox.telemetry.release import version

SERVICE = "orderpost"
ECS_VERSION = "8.11.0"
#: Our name -> ECS's name. All other fields are in the object `orderpost`.
_ECS = {
    "timestamp": "@timestamp",
    "level": "log.level",
    "logger": "log.logger",
    "event": "message",
    "service": "service.name",
    "version": "service.version",
    "role": "service.node.role",
    "trace_id": "trace.id",
    "error": "error.message",
    "exception": "error.stack_trace",
    "method": "http.request.method",
    "path": "url.path",
    "status": "http.response.status_code",
}
_OURS = {theirs: ours for ours, theirs in _ECS.items()}
_OWN = "orderpost"


def origin() -> dict[str, str]:
    """Return the fields of every line: the service, its version, and the role or the `manage.py` command."""
    return {"service": SERVICE, "version": version(), "role": health.role() or _COMMAND}


def _command(arguments: list[str]) -> str:
    """Return the command of `manage.py`, or an empty text for another program."""
    is_ours = len(arguments) > 1 and Path(arguments[0]).name == "manage.py"
    return arguments[1] if is_ours and not arguments[1].startswith("-") else ""


_COMMAND = _command(sys.argv)


def to_ecs(line: dict[str, Any]) -> dict[str, Any]:
    """Rename the fields of a line.

    >>> to_ecs({"event": "drained", "settled": 3})
    {'message': 'drained', 'ecs.version': '8.11.0', 'orderpost': {'settled': 3}}
    """
    named = {_ECS[name]: value for name, value in line.items() if name in _ECS}
    own = {name: value for name, value in line.items() if name not in _ECS}
    return {**named, "ecs.version": ECS_VERSION, **({_OWN: own} if own else {})}


def from_ecs(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line with our names. A line that has them already does not change.

    >>> from_ecs({"message": "drained", "ecs.version": "8.11.0", "orderpost": {"settled": 3}})
    {'event': 'drained', 'settled': 3}
    >>> from_ecs({"message": "drained", "ecs": {"version": "8.11.0"}, "log": {"level": "info"}})
    {'event': 'drained', 'level': 'info'}
    """
    own = line.get(_OWN)
    flat = _flatten({name: value for name, value in line.items() if name != _OWN})
    if "ecs.version" not in flat:
        return line
    named = {_OURS[name]: value for name, value in flat.items() if name in _OURS}
    return named | (own if isinstance(own, dict) else {})


def _flatten(line: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return names with dots for nested objects, which collectors make of them."""
    flat: dict[str, Any] = {}
    for name, value in line.items():
        flat |= _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat
