"""The logging of every process: JSON lines or colours on a terminal, both masked.

`configure` is Django's LOGGING_CONFIG, so every process that calls django.setup() logs alike. Our own lines
go through structlog; those of Django, Celery and gunicorn go through the same formatter.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from logging.handlers import WatchedFileHandler
from typing import Any

import structlog
from gunicorn import glogging  # type: ignore[import-untyped]

from config.masking import json_line, json_lines, scrub
from outbox.telemetry import context

#: On a terminal at most so many lines come of one call: a line there costs as much as publishing an event.
SHOWN = 10


def _merge_ids(logger: Any, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Put the ids of the work at hand on a line that does not name its own."""
    for name, value in context.ids().items():
        event.setdefault(name, value)
    return event


class _Logger(logging.Logger):
    """A logger that does not look for the line of code it is called from: no line names it."""

    def findCaller(  # noqa: N802 (logging's name)
        self, stack_info: bool = False, stacklevel: int = 1
    ) -> tuple[str, int, str, str | None]:
        return super().findCaller(stack_info, stacklevel) if stack_info else ("", 0, "", None)


def _hand_over(logger: Any, method: str, event: structlog.typing.EventDict) -> Any:
    """Pass a line on to logging, with its exception where other handlers look for it: config.sentry's."""
    arguments, extra = structlog.stdlib.ProcessorFormatter.wrap_for_formatter(logger, method, event)
    exc_info = event.get("exc_info")
    return arguments, {**extra, "exc_info": exc_info} if exc_info else extra


class LineFormatter(logging.Formatter):
    """Render a record as one line: structlog's, whose message is a dict, and any other library's.

    A line with the member `each`, a list of dicts, becomes a line for each.
    """

    def __init__(
        self,
        render: Callable[[dict[str, Any]], str],
        render_each: Callable[[dict[str, Any], Sequence[dict[str, str]]], str],
    ) -> None:
        super().__init__()
        self._render, self._render_each = render, render_each
        self._stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)

    def format(self, record: logging.LogRecord) -> str:
        event: Any
        if hasattr(record, "_logger"):  # structlog's
            event = dict(record.msg)  # type: ignore[arg-type] # its message is a dict
        else:
            event = {"event": record.getMessage()}
            if record.exc_info:
                event["exc_info"] = record.exc_info
            if record.stack_info:
                event["stack"] = record.stack_info
            event = _merge_ids(None, "", event)
            event |= {"level": record.levelname.lower(), "logger": record.name}
            event = self._stamp(None, "", event)
        if "exc_info" in event:
            event = structlog.processors.format_exc_info(None, "", event)
        if (each := event.pop("each", None)) is not None:
            return self._render_each(event, each)
        return self._render(event)


def configure(config: dict[str, str]) -> None:
    """Configure structlog and the standard library's logging. May be called again.

    `config` has `level` (a level name of logging), `format`: json or console, and `file`: where lines are
    appended, opened again after someone has moved it away; stderr if empty.
    """
    logging.setLoggerClass(_Logger)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            _merge_ids,
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            _hand_over,
        ],
        logger_factory=logging.getLogger,
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    # No line names its thread or its process: logging need not look for them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    console = structlog.dev.ConsoleRenderer()

    def coloured(event: dict[str, Any]) -> str:
        return str(console(None, "", scrub(event)))

    def coloured_each(event: dict[str, Any], each: Sequence[dict[str, str]]) -> str:
        shown = [coloured(event | one) for one in each[:SHOWN]]
        return "\n".join(shown + ([f"… and {len(each) - SHOWN} more"] if len(each) > SHOWN else []))

    path = config.get("file")
    handler = WatchedFileHandler(path, encoding="utf-8") if path else logging.StreamHandler()
    handler.setFormatter(
        LineFormatter(coloured, coloured_each)
        if config["format"] == "console"
        else LineFormatter(json_line, json_lines)
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(config["level"].upper())
    for name in ("django", "django.server", "gunicorn.error", "gunicorn.access"):
        logger = logging.getLogger(name)  # their own handlers neither write JSON nor mask
        logger.handlers = []
        logger.propagate = True
    # Every answer has its line from outbox.api.correlation; Django would repeat each 4xx.
    logging.getLogger("django.request").setLevel(logging.ERROR)
    logging.getLogger("django.server").setLevel(logging.WARNING)
    # A task is a wake-up or a poll, and what it does has lines of its own. Celery adds two for each.
    for name in ("celery.app.trace", "celery.worker.strategy"):
        logging.getLogger(name).setLevel(logging.DEBUG if config["level"] == "DEBUG" else logging.WARNING)
    # Django leaves it to the server to drop the body of an answer to HEAD; gunicorn warns whenever it does.
    logging.getLogger("gunicorn.http.wsgi").setLevel(logging.ERROR)


class GunicornLogger(glogging.Logger):  # type: ignore[misc]
    """Format gunicorn's own lines as all others: `gunicorn --logger-class config.logs.GunicornLogger`."""

    def setup(self, cfg: Any) -> None:
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
        from django.conf import settings

        configure(settings.LOGGING)
        self._access_log_enabled = self._compute_access_log_enabled()  # else computed for each request
        self.error_log.setLevel(cfg.loglevel.upper())
