"""The logging of every process: JSON lines or colours on a terminal, with addresses and secrets masked.

A line is rendered once. Only a line that may hold something to mask is taken apart for it.

`configure` is Django's LOGGING_CONFIG, so every process that calls django.setup() logs alike. Our own lines
go through structlog; those of Django, Celery and gunicorn go through the same formatter. config.sentry uses
`scrub`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
from collections.abc import Callable, Sequence
from json.encoder import encode_basestring_ascii as _quoted
from logging.handlers import WatchedFileHandler
from typing import Any

import structlog
from gunicorn import glogging  # type: ignore[import-untyped]

from notifications.providers.registry import declarations
from outbox.core import context

# The characters of an address's local part, without those that separate it from the text around it. A quote
# may be inside only. The possessive *+ keeps the time linear in the length of the text.
_LOCAL = r"(?:[\w.!#$*+^`{|}~-]|%(?!40))"
# The name of a Celery worker: its host is this one, or one without a domain, where no customer has mail.
_NODE = rf"celery@(?:{re.escape(socket.gethostname())}|[\w-]+)(?!\.?[\w-])"
_ADDRESS = re.compile(
    rf"""
    (?<![\w.!#$*+^`{{|}}~%-])             # a local part begins here
    (?!{_NODE})
    (?!{_LOCAL}{{1,3}}\*\*\*@)            # and is not masked already
    ({_LOCAL}{{1,3}})(?:{_LOCAL}|')*+
    (?:@|%40)([\w.-]+|\[)
    """,
    re.VERBOSE,
)

#: A value that is an address, masked already.
_MASKED = re.compile(rf'"{_LOCAL}{{1,3}}\*\*\*@')


def _literals(pattern: str) -> list[str]:
    r"""Return the texts of which a provider's key has one: `re_` and `whsec_` for `\b(re_|whsec_)…`."""
    group = re.match(r"\\b\(([\w|.\\-]+)\)", pattern)
    return group[1].replace("\\", "").lower().split("|") if group else [""]


# To look for a text costs a tenth of the search for a pattern. So each pattern comes with texts, in lower
# case, of which whatever it matches has one.
_SECRETS: tuple[tuple[Sequence[str], re.Pattern[str], str], ...] = (
    (["@"], re.compile(r"(://)[^\s/@]+@"), r"\1***@"),  # the user and password of a URL
    (["bearer", "basic"], re.compile(r"\b(bearer|basic)\s+[^\s\"',;]+", re.IGNORECASE), r"\1 ***"),
    (["op_"], re.compile(r"\bop_[\w-]{16,}"), "op_***"),  # API tokens
    *(
        (_literals(declared.key_pattern), re.compile(declared.key_pattern), r"\1***")
        for declared in declarations().values()
        if declared.key_pattern
    ),
)
# PostgreSQL repeats the whole row of a broken constraint, names among it, and the input of JSON or a COPY.
# No \b in front: in a repr a backslash and an n stand there.
_ROW = re.compile(
    r"(DETAIL|CONTEXT):\s.*?(?=\n(?:HINT|CONTEXT|LINE|QUERY):|\n\n(?:The above|During)|\nTraceback |\Z)",
    re.DOTALL,
)
#: On a terminal at most so many lines come of one call: a line there costs as much as publishing an event.
SHOWN = 10
_SECRET_NAMES = frozenset({"authorization", "password", "secret", "api_key", "cookie", "set-cookie"})
#: A correlation id that is no secret: one of ours, or a UUID.
_PLAIN_ID = re.compile(r"[0-9A-Za-z]*|[0-9A-Fa-f-]{36}")
# A line of JSON with none of these has nothing to mask.
_ADDRESS_MARKS = ("@", "%40")
_OTHER_MARKS = (
    *("detail:", "context:", "\\u"),
    *(f'"{name}"' for name in _SECRET_NAMES),
    *(text for texts, _, _ in _SECRETS for text in texts if text not in _ADDRESS_MARKS),
)


def _has(text: str, literals: Sequence[str]) -> bool:
    for literal in literals:  # noqa: SIM110 - any() with a generator takes three times as long
        if literal in text:
            return True
    return False


def mask(text: str) -> str:
    """Mask e-mail addresses but for three characters and the domain, and secrets entirely.

    >>> mask("to alice.smith@example.com, Bearer op_abc")
    'to ali***@example.com, Bearer ***'
    """
    lowered = text.casefold()
    for literals, pattern, replacement in _SECRETS:
        if _has(lowered, literals) and pattern.search(text):
            text = pattern.sub(replacement, text)
    if "DETAIL:" in text or "CONTEXT:" in text:
        text = _ROW.sub(r"\1: ***", text)
    return _ADDRESS.sub(r"\1***@\2", text) if "@" in text or "%40" in text else text


def scrub(value: Any) -> Any:
    """Mask every string in nested dicts, lists and tuples, keys too."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {
            scrub(key): "***" if isinstance(key, str) and key.lower() in _SECRET_NAMES else scrub(member)
            for key, member in value.items()
        }
    if isinstance(value, list | tuple):
        return [scrub(member) for member in value]
    return value


# ASCII: a line must come out whatever the terminal's encoding is, halves of surrogate pairs too.
_to_json = json.JSONEncoder(default=lambda value: mask(str(value))).encode


def json_line(event: dict[str, Any]) -> str:
    """Render an event as JSON, masked."""
    line = _to_json(event)
    lowered = line.casefold()
    if _has(lowered, _OTHER_MARKS):
        return _to_json(scrub(event))
    if not _has(lowered, _ADDRESS_MARKS):
        return line
    if "%40" not in line and len(_MASKED.findall(line)) == line.count("@"):
        return line  # a search for the masked is short; one for addresses reads every character
    # No pattern for addresses goes past a quote, so the line has the same matches as its values have.
    return mask(line) if "\\" not in line else _to_json(scrub(event))


def _merge_ids(logger: Any, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Put the ids of the work at hand on a line that does not name its own."""
    for name, value in context.ids().items():
        event.setdefault(name, value)
    return event


def json_lines(event: dict[str, Any], each: Sequence[dict[str, str]]) -> str:
    """Render a line of JSON for each of `each`, which says what the lines do not have in common.

    The ids in `each` are ours; only a correlation id may come from outside, and have something to mask.
    """
    head = _to_json(event)[:-1] + ", "
    lines = []
    for one in each:
        if _PLAIN_ID.fullmatch(one.get("correlation_id", "")):
            lines.append(
                head + ", ".join([f'"{name}": {_quoted(value)}' for name, value in one.items()]) + "}"
            )
        else:
            lines.append(json_line(event | one))
    return "\n".join(lines)


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
