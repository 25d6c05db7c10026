"""The logging of every process, as JSON lines or in colours for a terminal. All are masked.

`configure` is Django's LOGGING_CONFIG, which every process uses that calls django.setup(). Our lines come
from structlog; those of Django, Celery and Granian pass through the same formatter.
"""

from __future__ import annotations

import datetime as dt
import logging
import sys
from collections.abc import Callable, Mapping
from logging.handlers import WatchedFileHandler
from typing import Any, NoReturn

import structlog

from config.masking import mask_values, masked_json_line
from runtime.database.away import describe_away
from runtime.telemetry import context
from runtime.telemetry.release import origin


class _Line(logging.LogRecord):
    """A line of ours. Its message is the complete dict of its fields."""

    msg: dict[str, Any]


def _with_ids(event: Mapping[str, Any], *, level: str, logger: str) -> dict[str, Any]:
    """Return a line's fields after the ids of the current work, which the line's own fields replace."""
    now = dt.datetime.now(dt.UTC).isoformat().replace("+00:00", "Z")
    return {**context.ids(), **event, "level": level, "logger": logger, "timestamp": now}


def _hand_over(logger: Any, method: str, event: structlog.typing.EventDict) -> NoReturn:
    """Complete a line and pass it to the handlers of logging, in one step. Raise `DropEvent`, always.

    structlog has a processor for each field, and logging looks for the caller's file and line, which no line
    of ours shows. That took half of a line's time.
    """
    level = _LEVELS[method]
    if logger.isEnabledFor(level):
        exc_info = event.get("exc_info")
        if exc_info is True:
            exc_info = sys.exc_info()
        elif isinstance(exc_info, BaseException):
            exc_info = type(exc_info), exc_info, exc_info.__traceback__
        fields = _with_ids(event, level=_NAMES[level], logger=logger.name)
        # config.sentry's handler reads `exc_info`.
        logger.handle(_Line(logger.name, level, "", 0, fields, (), exc_info or None))
    raise structlog.DropEvent


#: The level of each of structlog's methods, and its name in a line.
_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "exception": logging.ERROR,
    "critical": logging.CRITICAL,
}
_NAMES = {level: method for method, level in _LEVELS.items() if method != "exception"}


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

    If `origin`, add the fields that name the process.
    """

    def __init__(self, render: Callable[[dict[str, Any]], str], *, origin: bool = True) -> None:
        super().__init__()
        self._origin = origin
        self._render = render

    def format(self, record: logging.LogRecord) -> str:
        event: Any
        if isinstance(record, _Line):
            event = record.msg
        else:
            event = {"event": record.getMessage()}
            # Anybody can send what Django refuses with 400: a wrong Host, filter or number of fields.
            if record.exc_info and not record.name.startswith("django.security."):
                event["exc_info"] = record.exc_info
            if record.stack_info:
                event["stack"] = record.stack_info
            event = _with_ids(event, level=record.levelname.lower(), logger=record.name)
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
    # No line shows a thread or a process. logging need not find them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    structlog.configure(
        processors=[_hand_over],
        logger_factory=logging.getLogger,
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        cache_logger_on_first_use=True,
    )
    console = structlog.dev.ConsoleRenderer()

    def coloured(event: dict[str, Any]) -> str:
        return str(console(None, "", mask_values(event)))

    formatters = {
        "console": LineFormatter(coloured, origin=False),
        "json": LineFormatter(masked_json_line),
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
    # web.api.correlation logs every answer. Django would log each 4xx again.
    logging.getLogger("django.request").setLevel(logging.ERROR)
    logging.getLogger("django.server").setLevel(logging.WARNING)
    # It would log all headers of a shop's answer if one is malformed, up to megabytes.
    logging.getLogger("urllib3.connection").setLevel(logging.ERROR)
    # Celery logs two lines for each task. The work of a task has its own lines.
    for name in ("celery.app.trace", "celery.worker.strategy"):
        logging.getLogger(name).setLevel(logging.DEBUG if config["level"] == "DEBUG" else logging.WARNING)
