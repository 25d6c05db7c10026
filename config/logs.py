"""The logging of every process, as JSON lines or in colours for a terminal. All are masked.

`configure` is Django's LOGGING_CONFIG, so every process that calls django.setup() uses it. Our lines pass
through structlog. Those of Django, Celery and Granian pass through the same formatter.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from logging.handlers import WatchedFileHandler
from typing import Any

import structlog

from config.masking import json_line, scrub
from runtime.database.away import describe_away
from runtime.telemetry import context
from runtime.telemetry.log_fields import origin


def _merge_ids(logger: Any, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Add the ids of the current work to a line, unless the line has its own."""
    for name, value in context.ids().items():
        event.setdefault(name, value)
    return event


def _hand_over(logger: Any, method: str, event: structlog.typing.EventDict) -> Any:
    """Pass a line to logging, with its exception also in `exc_info`, which config.sentry's handler reads."""
    arguments, extra = structlog.stdlib.ProcessorFormatter.wrap_for_formatter(logger, method, event)
    exc_info = event.get("exc_info")
    return arguments, {**extra, "exc_info": exc_info} if exc_info else extra


def _shorten(event: dict[str, Any]) -> dict[str, Any]:
    """Replace the exception of a line by its first line if the database's state caused it.

    While a disk is full, each request and each task fails in the same way, and a traceback has 45 lines.
    """
    error = event["exc_info"]
    if error is True:
        error = sys.exception()
    elif isinstance(error, tuple):
        error = error[1]
    short = describe_away(error) if isinstance(error, BaseException) else None
    if short is None:
        return event
    rest = {name: value for name, value in event.items() if name != "exc_info"}
    return {"error": short} | rest


class LineFormatter(logging.Formatter):
    """Render a record of structlog, whose message is a dict, or of any other library as one line.

    With `origin`, add the fields that name the process.
    """

    def __init__(self, render: Callable[[dict[str, Any]], str], *, origin: bool = True) -> None:
        super().__init__()
        self._origin = origin
        self._render = render
        self._stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)

    def format(self, record: logging.LogRecord) -> str:
        event: Any
        if hasattr(record, "_logger"):  # structlog made it
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
        if self._origin:
            event = origin() | event
        if "exc_info" in event:
            event = _shorten(event)
        if "exc_info" in event:
            event = structlog.processors.format_exc_info(None, "", event)
        return self._render(event)


def configure(config: dict[str, str]) -> None:
    """Configure structlog and the standard library's logging. May be called again.

    `config` has `level` (a level name of logging), `format` (json or console) and `file`. Lines are
    appended to the file, which is opened again if it was moved, or written to stderr if `file` is empty.
    """
    # No line shows a thread or a process, so logging need not find them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
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
    console = structlog.dev.ConsoleRenderer()

    def coloured(event: dict[str, Any]) -> str:
        return str(console(None, "", scrub(event)))

    formatters = {
        "console": LineFormatter(coloured, origin=False),
        "json": LineFormatter(json_line),
    }
    path = config.get("file")
    handler = WatchedFileHandler(path, encoding="utf-8") if path else logging.StreamHandler()
    handler.setFormatter(formatters[config["format"]])
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(config["level"].upper())
    for name in ("django", "django.server"):
        logger = logging.getLogger(name)  # its own handlers neither write JSON nor mask
        logger.handlers = []
        logger.propagate = True
    # web.api.correlation logs every answer, so Django would log each 4xx again.
    logging.getLogger("django.request").setLevel(logging.ERROR)
    logging.getLogger("django.server").setLevel(logging.WARNING)
    # Celery logs two lines for each task. The work of a task has its own lines.
    for name in ("celery.app.trace", "celery.worker.strategy"):
        logging.getLogger(name).setLevel(logging.DEBUG if config["level"] == "DEBUG" else logging.WARNING)
