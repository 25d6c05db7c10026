"""The control API, by which the pages, `manage.py demo` and a person make the sandbox fail.

A change needs `Content-Type: application/json`, which other web pages in the same browser cannot send.

    GET    /control/stats              totals, doubled notifications, requests per second
    GET    /control/faults, POST (one fault), DELETE (heal)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from local.sandbox.faults import Fault, InvalidFault
from local.sandbox.state import SandboxState
from notifications.providers.dialect import ProviderAnswer


@dataclass(frozen=True)
class Response(ProviderAnswer):
    """An answer of the control API. The server calls `then` after it has sent the answer."""

    then: Callable[[], None] | None = None


def as_json(value: Any, *, status: int = 200, then: Callable[[], None] | None = None) -> Response:
    """Return an answer with `value` as JSON."""
    return Response(status, json.dumps(value).encode(), then=then)


def answer(*, state: SandboxState, method: str, path: str, body: bytes | None) -> Response:
    """Perform a control request. `body` is None if it was not sent as JSON."""
    try:
        match method, path:
            case "GET", "/control/stats":
                return as_json(state.stats())
            case "GET", "/control/faults":
                return _faults(state)
            case "POST" | "DELETE", _ if body is None:
                return _refused(415, "a change needs Content-Type: application/json")
            case "POST", "/control/faults":
                return _add_fault(state, _read(body))
            case "DELETE", "/control/faults":
                state.heal()
                return _faults(state)
    except (InvalidFault, _Unreadable) as error:
        return _refused(400, str(error))
    return _refused(404, "no such control")


class _Unreadable(ValueError):
    """The body of a request is not JSON."""


def _add_fault(state: SandboxState, value: object) -> Response:
    fault = Fault.from_json(value)
    if fault.kind == "refuse":  # it closes this connection, too: answer first
        return as_json(fault.as_json(), status=201, then=lambda: state.set_fault(fault))
    state.set_fault(fault)
    return as_json(fault.as_json(), status=201)


def _faults(state: SandboxState) -> Response:
    return as_json([fault.as_json() for fault in state.faults.all()])


def _read(body: bytes | None) -> object:
    try:
        value: object = json.loads(body or b"")
    except (ValueError, RecursionError) as error:
        raise _Unreadable("the body is not JSON") from error
    return value


def _refused(status: int, reason: str) -> Response:
    return as_json({"error": reason}, status=status)
