"""Report unexpected errors to Sentry, without addresses, names or tokens.

Called by config.settings when SENTRY_DSN is set. Each line of the log at `error` is an event, and so is an
exception that leaves a task. Of one kind a process sends one event in `QUIET_SECONDS`: a thousand rows that
fail the same way are one error. Request bodies and local variables are not sent at all; what is sent goes
through config.masking.scrub.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import sentry_sdk
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.integrations.django import DjangoIntegration
from sentry_sdk.integrations.logging import LoggingIntegration, ignore_logger
from sentry_sdk.transport import Transport

from config.masking import scrub
from outbox.telemetry import context

QUIET_SECONDS = 600.0
#: The fields of a line that tell one kind of error from another. None has an id in it.
KIND = ("event_type", "outcome", "partition", "provider", "table", "topic")
_MOST_KINDS = 1000


class Kinds:
    """Which kinds of errors were reported lately."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reported: dict[tuple[str, ...], tuple[float, int]] = {}  # when, and how many came since

    def repeats(self, kind: tuple[str, ...]) -> int | None:
        """Return how many were not reported since the last one that was; None: do not report this one."""
        now = time.monotonic()
        with self._lock:
            at, count = self._reported.get(kind, (-QUIET_SECONDS, 0))
            if now - at < QUIET_SECONDS:
                self._reported[kind] = (at, count + 1)
                return None
            if len(self._reported) >= _MOST_KINDS:
                self._reported.clear()
            self._reported[kind] = (now, 0)
            return count


def init(
    *, dsn: str, environment: str, traces_sample_rate: float = 0.0, transport: Transport | None = None
) -> None:
    """Start reporting to the project that `dsn` names. `transport` is for tests. Raise `BadDsn`."""
    kinds = Kinds()

    def report(event: Any, hint: dict[str, Any]) -> Any:
        line = _line(hint)
        repeats = kinds.repeats(_kind(event, line))
        return None if repeats is None else _clean_event(_described(event, line, repeats), hint)

    sentry_sdk.init(
        dsn=dsn,
        environment=environment,
        traces_sample_rate=traces_sample_rate,
        transport=transport,
        integrations=[
            DjangoIntegration(),
            CeleryIntegration(monitor_beat_tasks=True),
            # Lines of the log become breadcrumbs, and those at `error` events.
            LoggingIntegration(level=logging.INFO, event_level=logging.ERROR),
        ],
        # send_default_pii stays unset, which means no; setting it at all is deprecated.
        include_local_variables=False,
        max_request_body_size="never",
        before_send=report,
        before_send_transaction=_clean_event,
        before_send_log=_clean,
        before_breadcrumb=_clean,
    )
    # Up to 500 events in one call: as breadcrumbs they would cost more than to publish them.
    ignore_logger("outbox.events.published")
    ignore_logger("django.security.DisallowedHost")  # scanners', answered 400


def _line(hint: dict[str, Any]) -> dict[str, Any]:
    """Return the line of the log that an event is made of; empty for any other event."""
    record = hint.get("log_record")
    if record is None:
        return {}
    return record.msg if isinstance(record.msg, dict) else {"event": str(record.msg)}


def _kind(event: Any, line: dict[str, Any]) -> tuple[str, ...]:
    """Return what an event has in common with its repeats: its text, and where its exception began."""
    words = [str(event.get("logger") or ""), str(line.get("event") or event.get("message") or "")]
    words += [f"{name}={line[name]}" for name in KIND if name in line]
    for thrown in (event.get("exception") or {}).get("values") or []:
        frames = (thrown.get("stacktrace") or {}).get("frames") or [{}]
        words += [str(thrown.get("type")), f"{frames[-1].get('module')}:{frames[-1].get('lineno')}"]
    return tuple(words)


def _described(event: Any, line: dict[str, Any], repeats: int) -> Any:
    """Give an event of a line the line's text as its title, and its fields."""
    extra = {"repeats": repeats}
    if line:
        event["logentry"] = {"message": str(line.get("event", ""))}
        extra |= {name: _plain(value) for name, value in line.items() if name not in ("event", "exc_info")}
    event["extra"] = {**dict(event.get("extra") or {}), **extra}
    return event


def _plain(value: object) -> Any:
    return value if isinstance(value, str | int | float | bool) else str(value)


def _clean(event: Any, _: Any) -> Any:
    return scrub(event)


def _clean_event(event: Any, _: Any) -> Any:
    cleaned = scrub(event)
    correlation_id = context.ids().get("correlation_id")
    if correlation_id:
        cleaned["tags"] = {**dict(cleaned.get("tags") or {}), "correlation_id": correlation_id}
    return cleaned
