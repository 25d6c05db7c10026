"""One log for every process: JSON lines for machines, colours on a terminal, nobody's address in either.

`configure` is Django's LOGGING_CONFIG, so that whatever calls django.setup() logs alike: ours through
structlog, everything else (Django, Celery, gunicorn) through the same formatter. config.sentry uses `scrub`.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import MutableMapping
from typing import Any

import structlog
from gunicorn import glogging  # type: ignore[import-untyped]

# What an address's local part may have, without what separates it from the text around it. A quote may be
# inside only. Possessive (*+), so that a long text takes no longer than it is long.
_LOCAL = r"(?:[\w.!#$*+^`{|}~-]|%(?!40))"
_ADDRESS = re.compile(
    rf"""
    (?<![\w.!#$*+^`{{|}}~%-])             # a local part begins here
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
    (re.compile(r"\bSG\.[\w-]+\.[\w-]+"), "SG.***"),  # SendGrid's keys
)
_SECRET_NAMES = frozenset({"authorization", "password", "secret", "api_key", "cookie", "set-cookie"})


def mask(text: str) -> str:
    """This function will leave of each e-mail address three characters and the domain, of a secret nothing.

    >>> mask("to alice.smith@example.com, Bearer op_abc")
    'to ali***@example.com, Bearer ***'
    """
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return _ADDRESS.sub(r"\1***@\2", text) if "@" in text or "%40" in text else text


def scrub(value: Any) -> Any:
    """This function will mask every string in nested dicts, lists and tuples, keys too."""
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
    """This function will set up structlog and the standard library's logging, as often as it is called.

    `config` has `level` (a name of logging's) and `format`: json or console.
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
        logger = logging.getLogger(name)  # their own handlers know nothing of JSON or of masking
        logger.handlers = []
        logger.propagate = True
    # Every answer has its line from outbox.api.correlation; Django would repeat each 4xx.
    logging.getLogger("django.request").setLevel(logging.ERROR)
    logging.getLogger("django.server").setLevel(logging.WARNING)
    # Django leaves it to the server to drop the body of an answer to HEAD; gunicorn warns whenever it does.
    logging.getLogger("gunicorn.http.wsgi").setLevel(logging.ERROR)


class GunicornLogger(glogging.Logger):  # type: ignore[misc]
    """For `gunicorn --logger-class config.logs.GunicornLogger`: the arbiter's lines look like all others."""

    def setup(self, cfg: Any) -> None:
        """Configure the logging of the arbiter as the settings have it."""
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
        from django.conf import settings

        configure(settings.LOGGING)
        self.error_log.setLevel(cfg.loglevel.upper())
