"""Report unexpected errors to Sentry, without addresses, names or tokens.

config.settings calls it if SENTRY_DSN is set. Each log line at `error` is an event, and so is an exception
that leaves a task. A process sends one event of a kind in `QUIET_SECONDS`, because a thousand rows that fail
the same way are one error. Request bodies and local variables are not sent. config.masking.scrub masks the
rest.
"""

from __future__ import annotations

import logging
import os
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
from outbox.telemetry.release import version

QUIET_SECONDS = 600.0
#: The fields of a line that distinguish kinds of errors. None of them is an id.
KIND = ("event_type", "outcome", "partition", "provider", "table", "topic")
_MOST_KINDS = 1000


class Kinds:
    """The kinds of errors that were reported lately."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reported: dict[tuple[str, ...], tuple[float, int]] = {}  # its time, and the number since

    def repeats(self, kind: tuple[str, ...]) -> int | None:
        """Return the number of unreported events since the last report, or None to not report this one."""
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
    """Start reporting to the project of `dsn`. `transport` is for tests. Raise `BadDsn`."""
    kinds = Kinds()

    def report(event: Any, hint: dict[str, Any]) -> Any:
        line = _line(hint)
        repeats = kinds.repeats(_kind(event, line))
        return None if repeats is None else _clean_event(_described(event, line, repeats), hint)

    sentry_sdk.init(
        dsn=dsn,
        environment=environment,
        # The SDK's own default is the commit of a checkout, and the image has none.
        release=os.environ.get("SENTRY_RELEASE") or f"orderpost@{version()}",
        traces_sample_rate=traces_sample_rate,
        transport=transport,
        integrations=[
            DjangoIntegration(),
            CeleryIntegration(monitor_beat_tasks=True),
            # Log lines become breadcrumbs, and lines at `error` become events.
            LoggingIntegration(level=logging.INFO, event_level=logging.ERROR),
        ],
        # Unset, send_default_pii is off. Setting it is deprecated.
        include_local_variables=False,
        max_request_body_size="never",
        before_send=report,
        before_send_transaction=_clean_event,
        before_send_log=_clean,
        before_breadcrumb=_clean,
    )
    # A batch has up to 500 events. As breadcrumbs they would cost more than publishing them.
    ignore_logger("outbox.events.published")
    ignore_logger("django.security.DisallowedHost")  # requests of scanners, answered with 400


def _line(hint: dict[str, Any]) -> dict[str, Any]:
    """Return the log line of an event, or {} if the event comes from no line."""
    record = hint.get("log_record")
    if record is None:
        return {}
    return record.msg if isinstance(record.msg, dict) else {"event": str(record.msg)}


def _kind(event: Any, line: dict[str, Any]) -> tuple[str, ...]:
    """Return the kind of an event: its text, and the place where its exception was raised."""
    words = [str(event.get("logger") or ""), str(line.get("event") or event.get("message") or "")]
    words += [f"{name}={line[name]}" for name in KIND if name in line]
    for thrown in (event.get("exception") or {}).get("values") or []:
        frames = (thrown.get("stacktrace") or {}).get("frames") or [{}]
        words += [str(thrown.get("type")), f"{frames[-1].get('module')}:{frames[-1].get('lineno')}"]
    return tuple(words)


def _described(event: Any, line: dict[str, Any], repeats: int) -> Any:
    """Give an event the text of its log line as its title, and the line's fields."""
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
    if "release" in event:
        cleaned["release"] = event["release"]  # package@version would be masked as an address
    correlation_id = context.ids().get("correlation_id")
    if correlation_id:
        cleaned["tags"] = {**dict(cleaned.get("tags") or {}), "correlation_id": correlation_id}
    return cleaned
