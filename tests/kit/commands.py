"""Commands of long-running processes, run in the test's own process until a condition holds."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connections

from local.sandbox import Sandbox
from operations.management.commands import demo
from tests.kit.waiting import until
from tests.kit.words import PROVIDERS, EmailNotification, drain


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Give this process its handlers of SIGTERM and SIGINT back at the end."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stopped_when(condition: Callable[[], object]) -> Iterator[None]:
    """SIGTERM for this process once `condition` holds, or after a while; its own handlers come back."""

    def watch() -> None:
        try:
            until(condition)
        finally:
            connections.close_all()
            os.kill(os.getpid(), signal.SIGTERM)

    watcher = threading.Thread(target=watch)
    with handlers_kept():
        watcher.start()
        try:
            yield
        finally:
            watcher.join()


@pytest.fixture
def provider(settings: Any, valkey_url: str) -> Iterator[Sandbox]:
    """Send this process's e-mails to a sandbox."""
    with Sandbox() as sandbox:
        settings.ANYMAIL = settings.ANYMAIL | {"SENDGRID_API_URL": sandbox.api_url}
        drain.reset()
        PROVIDERS["sendgrid"].close()
        yield sandbox
        PROVIDERS["sendgrid"].close()


@pytest.fixture
def polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll the outbox when the demo sleeps, and never reach the end of its wait."""
    polls = iter(range(100))

    def sleep(_: float) -> None:
        assert next(polls, None) is not None, "the demo still waits"
        drain.poll()

    monkeypatch.setattr(demo, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: 0.0))


def sent() -> int:
    return EmailNotification.objects.filter(status="sent").count()
