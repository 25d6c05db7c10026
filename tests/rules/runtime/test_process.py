"""A long-running process waits for PostgreSQL, outlives a neighbour that is away, and stops on a signal."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from billiard.einfo import ExceptionInfo
from celery.app.trace import build_tracer
from django.db import OperationalError, ProgrammingError

from config.celery import app
from local.machine import PROJECT
from runtime.process.start import RETRY_SECONDS, wait_for_postgres
from tests.kit.commands import handlers_kept
from tests.kit.waiting import PATIENCE
from tests.kit.words import drain, loop, tasks


class Away(Exception):
    pass


def run(step, stopped, monkeypatch, **more):
    waits = []
    monkeypatch.setattr(stopped, "wait", lambda seconds: waits.append(seconds))
    loop.run_until_stopped(
        step=step,
        stopped=stopped,
        errors=(Away,),
        reconnect=more.get("reconnect", lambda: None),
        describe=lambda error: "away",
    )
    return waits


def steps(outcomes, stopped):
    """Return a step that raises each of the outcomes in turn, None for a success, and then stops."""
    left = iter(outcomes)

    def step():
        outcome = next(left, stopped)
        if outcome is stopped:
            stopped.set()
        elif outcome is not None:
            raise outcome

    return step


def test_it_waits_longer_after_each_failure_and_starts_again_after_a_success(monkeypatch):
    stopped, reconnects = threading.Event(), []
    step = steps([Away(), Away(), Away(), None, Away()], stopped)
    waits = run(step, stopped, monkeypatch, reconnect=lambda: reconnects.append(1))
    assert [0.5 <= waits[0] <= 1, 1 <= waits[1] <= 2, 2 <= waits[2] <= 4, 0.5 <= waits[3] <= 1] == [True] * 4
    assert len(reconnects) == 4


def test_it_logs_each_outage_once(monkeypatch, caplog):
    stopped = threading.Event()
    step = steps([Away("one"), Away("two"), None, Away("three"), Away("four")], stopped)
    run(step, stopped, monkeypatch)
    assert [record.msg["error"] for record in caplog.records] == ["one", "three"]


def test_an_error_that_is_not_a_neighbours_absence_ends_it(monkeypatch):
    def step():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(step, threading.Event(), monkeypatch)


@pytest.fixture
def handlers() -> Iterator[None]:
    with handlers_kept():
        yield


def test_a_signal_sets_the_event_and_calls_what_else_has_to_stop(handlers):
    called = threading.Event()
    stopped = loop.stop_on_signals(also=called.set)
    os.kill(os.getpid(), signal.SIGTERM)
    assert stopped.wait(PATIENCE)
    assert called.wait(PATIENCE)


def test_a_signal_is_handled_by_another_thread_than_the_one_that_it_interrupts(handlers, monkeypatch):
    """The interrupted thread may hold the event's lock, as `wait` does for a moment."""
    threads, done = [], threading.Event()
    stopped = loop.stop_on_signals(also=lambda: (threads.append(threading.get_ident()), done.set()))
    monkeypatch.setattr(stopped, "set", lambda: threads.append(threading.get_ident()))
    os.kill(os.getpid(), signal.SIGTERM)
    assert done.wait(PATIENCE)
    assert len(threads) == 2 and threading.get_ident() not in threads


def test_a_command_in_another_thread_stops_alone_and_starts_again(handlers):
    """Its second call replaces the first, so that a signal does not stop what has ended."""
    stopped, calls = loop.stop_on_signals(), []

    def command() -> None:
        for number in (1, 2):
            mine = loop.stop_on_signals(also=functools.partial(calls.append, number))
            if number == 1:
                mine.set()
        second.set()
        assert mine.wait(PATIENCE)

    second = threading.Event()
    thread = threading.Thread(target=command)
    thread.start()
    assert second.wait(PATIENCE) and not stopped.is_set()
    os.kill(os.getpid(), signal.SIGTERM)
    thread.join(PATIENCE)
    assert stopped.wait(PATIENCE) and calls == [2]


def test_commands_in_other_threads_stop_with_the_main_one(handlers):
    stopped, told, events = loop.stop_on_signals(), threading.Event(), []
    thread = threading.Thread(target=lambda: events.append(loop.stop_on_signals(also=told.set)))
    thread.start()
    thread.join()
    os.kill(os.getpid(), signal.SIGTERM)
    (other,) = events
    assert stopped.wait(PATIENCE) and other.wait(PATIENCE) and told.wait(PATIENCE)


@pytest.mark.django_db
def test_a_start_repeats_its_work_until_it_succeeds_and_logs_the_first_error(caplog, monkeypatch):
    monkeypatch.setattr("runtime.process.start.connections.close_all", lambda: None)
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


@pytest.mark.django_db
def test_a_start_returns_when_the_process_must_stop(monkeypatch):
    monkeypatch.setattr("runtime.process.start.connections.close_all", lambda: None)
    stopped = threading.Event()

    def work() -> None:
        stopped.set()
        raise OperationalError

    wait_for_postgres(pause=stopped.wait, work=work)
    assert stopped.is_set()


@pytest.mark.django_db
def test_an_error_that_no_wait_can_repair_ends_the_start():
    def work() -> None:
        raise ProgrammingError("no such table")

    with pytest.raises(ProgrammingError):
        wait_for_postgres(pause=lambda _: pytest.fail("it waited"), work=work)


def test_the_web_process_has_nothing_old_to_collect_once_it_serves():
    code = """
import gc
import config.wsgi
assert gc.get_freeze_count() > 100_000, gc.get_freeze_count()
assert len(gc.get_objects()) < 10_000, len(gc.get_objects())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr


@pytest.mark.django_db
def test_a_failed_task_leaves_nothing_to_the_collector(monkeypatch):
    def fail(_: object) -> None:
        try:
            raise OSError("the connection was closed")
        except OSError as error:
            raise OperationalError from error

    monkeypatch.setattr(drain, "drain_emails", fail)
    trace = build_tracer("drain_emails", tasks.drain_emails, app=app)  # what a worker calls
    gc.disable()
    try:
        trace("id", (), {}, {})
        assert [value for value in gc.get_objects() if type(value) is ExceptionInfo] == []
    finally:
        gc.enable()


def test_forty_threads_share_the_two_arenas_of_the_image(tmp_path):
    code = """
import ctypes, sys, threading
libc, all_there = ctypes.CDLL(None), threading.Barrier(40)
libc.fopen.restype = ctypes.c_void_p
def work():
    all_there.wait()
    libc.malloc(3000)
    all_there.wait()
threads = [threading.Thread(target=work) for _ in range(40)]
for one in threads:
    one.start()
for one in threads:
    one.join()
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""
    if not hasattr(ctypes.CDLL(None), "malloc_info"):
        pytest.skip("the C library here is not glibc")
    report = tmp_path / "malloc.xml"
    (arenas,) = re.findall(r"MALLOC_ARENA_MAX=(\d+)", (PROJECT / "docker" / "Dockerfile").read_text())
    environment = os.environ | {"MALLOC_ARENA_MAX": arenas}
    subprocess.run([sys.executable, "-c", code, str(report)], env=environment, check=True, timeout=PATIENCE)
    assert 1 <= report.read_text().count("<heap nr=") <= 2
