"""The control API, by which the pages, tests in other processes and chaos runs change the sandbox's state.

Called by the sandbox's server. A change needs `Content-Type: application/json`, so that other web pages in
the same browser cannot make one.

    GET    /control/stats              totals, doubled notifications, requests per second
    GET    /control/counts             {notification_id: [requests, accepted]} for every notification
    GET    /control/mails?notification_id=&order_id=&to=&limit=     newest first
    DELETE /control/mails                                   forget mails and counts
    GET    /control/faults, POST (one fault), DELETE (heal)
    POST   /control/latency {"seconds": 0.05}
    GET    /control/webhooks, POST (settings), DELETE (post none)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from local.sandbox.faults import Fault, InvalidFault
from local.sandbox.state import State
from local.sandbox.webhooks import InvalidWebhookSettings, WebhookSettings
from notifications.providers.dialect import ProviderAnswer

_LARGEST_LIST = 20_000


@dataclass(frozen=True)
class Response(ProviderAnswer):
    """An answer of the control API. The server calls `then` after it has sent the answer."""

    then: Callable[[], None] | None = None


def as_json(value: Any, *, status: int = 200, then: Callable[[], None] | None = None) -> Response:
    """Return an answer with `value` as JSON."""
    return Response(status, json.dumps(value).encode(), then=then)


def answer(*, state: State, method: str, path: str, query: Mapping[str, str], body: bytes | None) -> Response:
    """Perform a control request. `body` is None if it was not sent as JSON."""
    try:
        match method, path:
            case "GET", "/control/stats":
                return as_json(state.stats())
            case "GET", "/control/counts":
                return as_json(state.mailbox.counts())
            case "GET", "/control/mails":
                return as_json([mail.as_json() for mail in _find(state, query)])
            case "GET", "/control/faults":
                return _faults(state)
            case "GET", "/control/webhooks":
                return _webhooks(state)
            case "POST" | "DELETE", _ if body is None:
                return _refused(415, "a change needs Content-Type: application/json")
            case "DELETE", "/control/mails":
                state.mailbox.clear()
                return Response(204, content_type="")
            case "POST", "/control/faults":
                return _add_fault(state, _read(body))
            case "DELETE", "/control/faults":
                state.heal()
                return _faults(state)
            case "POST", "/control/latency":
                state.latency_seconds = _seconds(_read(body))
                return as_json({"seconds": state.latency_seconds})
            case "POST", "/control/webhooks":
                state.webhooks.settings = WebhookSettings.from_json(_read(body))
                return _webhooks(state)
            case "DELETE", "/control/webhooks":
                state.webhooks.settings = None
                return _webhooks(state)
    except (InvalidFault, InvalidWebhookSettings, _Unreadable) as error:
        return _refused(400, str(error))
    return _refused(404, "no such control")


class _Unreadable(ValueError):
    """The body or the query of a request has wrong values."""


def _find(state: State, query: Mapping[str, str]) -> list[Any]:
    limit = query.get("limit", "100")
    if not (limit.isascii() and limit.isdigit()) or not 1 <= int(limit) <= _LARGEST_LIST:
        raise _Unreadable(f"limit must be a whole number from 1 to {_LARGEST_LIST}")
    return state.mailbox.find(
        notification_id=query.get("notification_id", ""),
        order_id=query.get("order_id", ""),
        to=query.get("to", ""),
        limit=int(limit),
    )


def _add_fault(state: State, value: object) -> Response:
    fault = Fault.from_json(value)
    if fault.kind == "refuse":  # it closes this connection too, so answer first
        return as_json(fault.as_json(), status=201, then=lambda: state.set_fault(fault))
    state.set_fault(fault)
    return as_json(fault.as_json(), status=201)


def _faults(state: State) -> Response:
    return as_json([fault.as_json() for fault in state.faults.all()])


def _webhooks(state: State) -> Response:
    settings = state.webhooks.settings
    return as_json(settings.as_json() if settings else None)


def _seconds(value: object) -> float:
    seconds = value.get("seconds") if isinstance(value, dict) else None
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds <= 60:
        raise _Unreadable("seconds must be a number from 0 to 60")
    return float(seconds)


def _read(body: bytes | None) -> object:
    try:
        value: object = json.loads(body or b"")
    except (ValueError, RecursionError) as error:
        raise _Unreadable("the body is not JSON") from error
    return value


def _refused(status: int, reason: str) -> Response:
    return as_json({"error": reason}, status=status)
