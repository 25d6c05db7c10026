"""What a route of the sandbox answers; written by its HTTP server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Response:
    """Status, body and headers; `then` is called when the answer is out."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    then: Callable[[], None] | None = None


def as_json(value: Any, *, status: int = 200, then: Callable[[], None] | None = None) -> Response:
    """Make a JSON answer."""
    return Response(status, json.dumps(value).encode(), then=then)
