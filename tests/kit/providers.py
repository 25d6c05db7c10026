"""Fixtures that lead every provider to the sandbox, and SMTP to a server of the tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from local.machine import HOST
from local.sandbox import Sandbox
from runtime import bounded_http
from tests.kit.smtp import SmtpServer
from tests.kit.waiting import PATIENCE
from tests.kit.words import PROVIDERS, declarations, drain

#: The names of the providers with an API.
HTTP = [name for name, declared in declarations().items() if declared.dialect]
#: Values of `reply_to`, and the address that they name.
REPLY_TO = [
    ("help@shop.test", {"email": "help@shop.test"}),
    ("Müller & Söhne <help@shop.test>", {"email": "help@shop.test", "name": "Müller & Söhne"}),
]


@pytest.fixture
def provider(settings, monkeypatch) -> Iterator[Sandbox]:
    """Start a sandbox, and let every provider with an API lead to it.

    Timeouts are long, because a busy machine may need a second for an answer. A test of them calls
    `set_timeouts`.
    """
    with Sandbox(api_key="sandbox") as sandbox:
        lead_to(sandbox.url, settings=settings, monkeypatch=monkeypatch)
        yield sandbox
        close()


def lead_to(url: str, *, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every provider with an API lead to `url`, which plays all of them."""
    anymail: dict[str, Any] = {}
    for declared in declarations().values():
        places = {setting.name: setting.anymail for setting in declared.settings}
        for name, value in declared.sandbox.items():
            value = value.format(sandbox=url)
            if place := places.get(name):
                anymail[place] = value
            elif name in places:
                setattr(settings, name, value)
            else:  # the provider's library reads it
                monkeypatch.setenv(name, value)
    settings.ANYMAIL = settings.ANYMAIL | anymail
    set_timeouts(settings, seconds=30)


def set_timeouts(settings: Any, *, seconds: int) -> None:
    """Let a connect and a read take so long, also for the senders that exist."""
    settings.ANYMAIL = settings.ANYMAIL | {"REQUESTS_TIMEOUT": (seconds, seconds)}
    settings.EMAIL_CONNECT_TIMEOUT = settings.EMAIL_READ_TIMEOUT = seconds
    close()


def close() -> None:
    """Close the connections of earlier tests, and forget which authorities they trusted."""
    for provider in PROVIDERS.values():
        provider.close()
    bounded_http.tls_context.cache_clear()


def end_senders() -> None:
    """Close the connections of the threads that sent for this test, and stop the threads."""
    if pool := vars(drain.current()).get("pool"):
        threads = len(pool._threads)
        all_at_it = threading.Barrier(threads)

        def end(_: int) -> None:
            all_at_it.wait(PATIENCE)
            close()

        list(pool.map(end, range(threads)))
        pool.shutdown()
    drain.reset()


@pytest.fixture
def smtp(settings) -> Iterator[SmtpServer]:
    """Start an SMTP server, and let Django's backend lead to it, with long timeouts, as `provider` has."""
    with smtp_server(settings, seconds=30) as server:
        yield server


@contextmanager
def smtp_server(settings: Any, *, seconds: int) -> Iterator[SmtpServer]:
    """Start an SMTP server, and let Django's backend lead to it and wait so long for a reply."""
    with SmtpServer() as server:
        settings.EMAIL_HOST, settings.EMAIL_PORT = HOST, server.port
        settings.EMAIL_CONNECT_TIMEOUT = settings.EMAIL_READ_TIMEOUT = settings.EMAIL_TIMEOUT = seconds
        close()
        end_senders()  # those of other settings, too
        yield server
        close()
        end_senders()
