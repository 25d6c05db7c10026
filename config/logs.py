"""The logging of every process: JSON lines or colours on a terminal, with addresses and secrets masked.

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
from collections.abc import MutableMapping
from typing import Any

import structlog
from gunicorn import glogging  # type: ignore[import-untyped]

from notifications.providers.registry import declarations

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
_SECRETS = (
    (re.compile(r"(://)[^\s/@]+@"), r"\1***@"),  # the user and password of a URL
    (re.compile(r"\b(bearer|basic)\s+[^\s\"',;]+", re.IGNORECASE), r"\1 ***"),
    (re.compile(r"\bop_[\w-]{16,}"), "op_***"),  # API tokens
    *(
        (re.compile(declared.key_pattern), r"\1***")
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
_SECRET_NAMES = frozenset({"authorization", "password", "secret", "api_key", "cookie", "set-cookie"})


def mask(text: str) -> str:
    """Mask e-mail addresses but for three characters and the domain, and secrets entirely.

    >>> mask("to alice.smith@example.com, Bearer op_abc")
    'to ali***@example.com, Bearer ***'
    """
    for pattern, replacement in _SECRETS:
        if pattern.search(text):  # a substitution costs ten times as much, also where it finds nothing
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


def _scrub_event(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    scrubbed: dict[str, Any] = scrub(dict(event))
    return scrubbed


def _to_json(event: Any, **_: Any) -> str:
    # ASCII: a line must come out whatever the terminal's encoding is, halves of surrogate pairs too.
    return json.dumps(event, default=lambda value: mask(str(value)))


def configure(config: dict[str, str]) -> None:
    """Configure structlog and the standard library's logging. May be called again.

    `config` has `level` (a level name of logging) and `format`: json or console.
    """
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    render: Any = (
        structlog.dev.ConsoleRenderer()
        if config["format"] == "console"
        else structlog.processors.JSONRenderer(serializer=_to_json)
    )
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                _scrub_event,
                render,
            ],
        )
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
    # Django leaves it to the server to drop the body of an answer to HEAD; gunicorn warns whenever it does.
    logging.getLogger("gunicorn.http.wsgi").setLevel(logging.ERROR)


class GunicornLogger(glogging.Logger):  # type: ignore[misc]
    """Format gunicorn's own lines as all others: `gunicorn --logger-class config.logs.GunicornLogger`."""

    def setup(self, cfg: Any) -> None:
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
        from django.conf import settings

        configure(settings.LOGGING)
        self.error_log.setLevel(cfg.loglevel.upper())
