"""The correlation id and trace of a piece of work, which its rows and log lines carry.

Set at an edge (a request, a task, a command), read where rows are written.
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
    """Ids that join a change to all that it causes; `traceparent` is W3C's, empty when there is none."""

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
    """Return a caller's correlation id if it is well formed, else None."""
    return value if value and _CORRELATION_ID.fullmatch(value) else None


def accept_traceparent(value: str | None) -> str:
    """Return a caller's W3C traceparent if it is well formed, else an empty string."""
    return value if value and _TRACEPARENT.fullmatch(value) else ""


def current() -> Context:
    """Return the context of the work at hand, or a new one outside any."""
    return _current.get(None) or Context(new_correlation_id())


def ids() -> dict[str, str]:
    """Return what a log line says of the work at hand: its correlation id, and its trace if it has one."""
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
