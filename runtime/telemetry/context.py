"""The correlation id and trace of a piece of work, which its rows and log lines contain.

A request, a task or a command sets them. The code that writes rows reads them.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import re
import secrets
from collections.abc import Iterator

_CORRELATION_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """Ids that link a change to everything that it causes. `traceparent` is W3C's, or empty."""

    correlation_id: str
    traceparent: str = ""
    idempotency_key: str = ""

    @property
    def trace_id(self) -> str:
        """The 32 hex digits of the W3C trace, or an empty string."""
        return self.traceparent[3:35]


_current: contextvars.ContextVar[Context] = contextvars.ContextVar("orderpost_context")


def new_correlation_id() -> str:
    """Make a correlation id: 32 hex digits."""
    return secrets.token_hex(16)


def accept_correlation_id(value: str | None) -> str | None:
    """Return a caller's correlation id if it is well formed, otherwise None."""
    return value if value and _CORRELATION_ID.fullmatch(value) else None


def accept_traceparent(value: str | None) -> str:
    """Return a caller's W3C traceparent if it is well formed, otherwise an empty string."""
    return value if value and _TRACEPARENT.fullmatch(value) else ""


def current() -> Context:
    """Return the context of the current work, or a new one if no context is set."""
    return _current.get(None) or Context(new_correlation_id())


def ids() -> dict[str, str]:
    """Return the ids of the current work for a log line: its correlation id, and its trace if it has one."""
    work = _current.get(None)
    if work is None:
        return {}
    return {"correlation_id": work.correlation_id} | ({"trace_id": work.trace_id} if work.traceparent else {})


@contextlib.contextmanager
def working_for(context: Context) -> Iterator[None]:
    """Make `context` the current one within the block. Log lines then have its correlation id and trace."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)
