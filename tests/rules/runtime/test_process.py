"""Long-running commands stop on a signal and outlive a neighbour that is away."""

from __future__ import annotations

import functools
import os
import signal
import threading

import pytest

from outbox.process import loop


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


def test_it_waits_longer_after_each_failure_and_starts_again_after_a_success(monkeypatch):
    stopped, reconnects = threading.Event(), []
    outcomes = iter([Away(), Away(), Away(), None, Away()])

    def step():
        outcome = next(outcomes, stopped)
        if outcome is stopped:
            stopped.set()
        elif outcome is not None:
            raise outcome

    waits = run(step, stopped, monkeypatch, reconnect=lambda: reconnects.append(1))
    assert [0.5 <= waits[0] <= 1, 1 <= waits[1] <= 2, 2 <= waits[2] <= 4, 0.5 <= waits[3] <= 1] == [True] * 4
    assert len(reconnects) == 4


def test_it_logs_each_outage_once(monkeypatch, caplog):
    stopped = threading.Event()
    outcomes = iter([Away("one"), Away("two"), None, Away("three"), Away("four")])

    def step():
        outcome = next(outcomes, stopped)
        if outcome is stopped:
            stopped.set()
        elif outcome is not None:
            raise outcome

    run(step, stopped, monkeypatch)
    assert [record.msg["error"] for record in caplog.records] == ["one", "three"]


def test_an_error_that_is_not_a_neighbours_absence_ends_it(monkeypatch):
    def step():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(step, threading.Event(), monkeypatch)


@pytest.fixture
def handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_sets_the_event_and_calls_what_else_has_to_stop(handlers):
    called = threading.Event()
    stopped = loop.stop_on_signals(also=called.set)
    os.kill(os.getpid(), signal.SIGTERM)
    assert stopped.wait(30)
    assert called.wait(30)


def test_a_signal_does_not_wait_for_the_lock_that_its_own_thread_holds(handlers):
    stopped = loop.stop_on_signals()
    with stopped._cond:  # as `wait` holds it for a moment
        os.kill(os.getpid(), signal.SIGTERM)
    assert stopped.wait(30)


def test_a_command_in_another_thread_stops_alone_and_starts_again(handlers):
    """Its second call replaces the first, so that a signal does not stop what has ended."""
    stopped, calls = loop.stop_on_signals(), []

    def command() -> None:
        for number in (1, 2):
            mine = loop.stop_on_signals(also=functools.partial(calls.append, number))
            if number == 1:
                mine.set()
        second.set()
        assert mine.wait(20)

    second = threading.Event()
    thread = threading.Thread(target=command)
    thread.start()
    assert second.wait(20) and not stopped.is_set()
    os.kill(os.getpid(), signal.SIGTERM)
    thread.join(20)
    assert stopped.wait(20) and calls == [2]


def test_commands_in_other_threads_stop_with_the_main_one():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        stopped, told, found = loop.stop_on_signals(), threading.Event(), []
        thread = threading.Thread(target=lambda: found.append(loop.stop_on_signals(also=told.set)))
        thread.start()
        thread.join()
        os.kill(os.getpid(), signal.SIGTERM)
        (other,) = found
        assert stopped.wait(20) and other.wait(20) and told.wait(20)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
