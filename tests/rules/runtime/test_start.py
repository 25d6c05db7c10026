"""A process waits at its start for PostgreSQL, until it answers or the process must stop."""

from __future__ import annotations

import threading

import pytest
from django.db import OperationalError, ProgrammingError

from outbox.process.start import RETRY_SECONDS, wait_for_postgres

pytestmark = pytest.mark.django_db


def test_it_repeats_the_work_until_it_succeeds_and_logs_the_first_error(caplog, monkeypatch):
    monkeypatch.setattr("outbox.process.start.connections.close_all", lambda: None)
    outcomes = iter([OperationalError("timeout\n"), OperationalError("refused"), None])
    pauses: list[float] = []

    def work() -> None:
        if (outcome := next(outcomes)) is not None:
            raise outcome

    wait_for_postgres(pause=pauses.append, work=work)
    assert pauses == [RETRY_SECONDS] * 2
    assert [(record.msg["event"], record.msg["error"]) for record in caplog.records] == [
        ("waiting for PostgreSQL", "timeout")
    ]


def test_it_returns_when_the_process_must_stop(monkeypatch):
    monkeypatch.setattr("outbox.process.start.connections.close_all", lambda: None)
    stopped = threading.Event()

    def work() -> None:
        stopped.set()
        raise OperationalError

    wait_for_postgres(pause=stopped.wait, work=work)
    assert stopped.is_set()


def test_an_error_that_no_wait_can_repair_ends_the_process():
    def work() -> None:
        raise ProgrammingError("no such table")

    with pytest.raises(ProgrammingError):
        wait_for_postgres(pause=lambda _: pytest.fail("it waited"), work=work)
