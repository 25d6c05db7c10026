"""Wake-ups cost the caller nothing, come bundled or at a time, and survive errors and a fork."""

from __future__ import annotations

import os
import threading
import time
from types import SimpleNamespace

import pytest

from runtime.process import waker as module
from tests.kit.waiting import PATIENCE, until

#: A wake-up after an earlier one.
LATER = {"in_seconds": 60.0}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.0)


def Waker(call) -> module.Waker:
    return module.Waker(call, target="test")


def test_a_thousand_wakes_during_a_call_are_one_call_after_it():
    calls, release = [], threading.Event()
    waker = Waker(lambda: (calls.append(1), release.wait(PATIENCE)))
    waker.wake()
    until(lambda: calls)
    for _ in range(1000):
        waker.wake()
    release.set()
    until(lambda: len(calls) == 2)
    waker.wake()
    until(lambda: len(calls) == 3)


def test_a_call_knows_the_first_reason_since_the_last_call():
    reasons, release = [], threading.Event()
    waker = Waker(lambda: (reasons.append(waker.reason), release.wait(PATIENCE)))
    waker.wake("first")
    until(lambda: reasons)
    waker.wake("second", in_seconds=60)
    waker.wake("third")
    release.set()
    until(lambda: len(reasons) == 2)
    waker.wake()
    until(lambda: len(reasons) == 3)
    assert reasons == ["first", "second", ""]


def test_it_waits_longer_while_wake_ups_keep_coming_and_not_after_a_pause(monkeypatch):
    slept, calls, idle = [], [], threading.Event()

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) in (1, 2, 4):
            waker.wake()
        if len(slept) in (3, 5):
            idle.set()

    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 1.0)
    monkeypatch.setattr(module, "BUSY_SECONDS", 3.0)
    waker = Waker(lambda: calls.append(1))
    waker.wake()
    assert idle.wait(PATIENCE)
    idle.clear()
    waker.wake()
    assert idle.wait(PATIENCE)
    assert slept == [1.0, 3.0, 3.0, 1.0, 3.0] and len(calls) == 5


def test_a_wake_up_that_is_already_set_takes_no_lock(monkeypatch):
    locked: list[int] = []

    class Counted(threading.Condition):
        def __enter__(self) -> bool:
            locked.append(threading.get_ident())
            return super().__enter__()

    release, entered = threading.Event(), threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Condition", Counted)
        waker = Waker(lambda: entered.set() or release.wait(PATIENCE))
    waker.wake()
    assert entered.wait(PATIENCE)
    waker.wake()  # sets it; the thread is still busy
    mine = [threading.get_ident()] * 2
    assert [thread for thread in locked if thread in mine] == mine
    waker.wake()
    waker.wake(**LATER)
    assert [thread for thread in locked if thread in mine] == mine
    release.set()


def test_a_blocking_broker_does_not_block_the_caller():
    release, ended = threading.Event(), []
    waker = Waker(lambda: ended.append(release.wait(PATIENCE)))
    try:
        for _ in range(100):
            waker.wake()
            assert ended == []
    finally:
        release.set()


def test_a_broker_that_is_away_is_counted_and_asked_again_at_the_next_wake():
    calls = []

    def enqueue():
        calls.append(1)
        raise ConnectionError("away")

    waker = Waker(enqueue)
    waker.wake()
    until(lambda: waker.failures == 1)
    waker.wake()
    until(lambda: waker.failures == 2)
    assert len(calls) == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns of any fork beside threads
def test_a_forked_child_has_a_thread_of_its_own():
    read, write = os.pipe()
    waker = Waker(lambda: os.write(write, b"woken"))
    waker.wake()
    assert os.read(read, 10) == b"woken"
    child = os.fork()
    if child == 0:
        waker.wake()
        time.sleep(PATIENCE)
        os._exit(0)
    try:
        assert os.read(read, 10) == b"woken"
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_it_calls_at_the_earliest_time_and_forgets_the_later_one():
    called = threading.Semaphore(0)
    waker = Waker(called.release)
    waker.wake(in_seconds=60)
    waker.wake(in_seconds=0.01)
    waker.wake(in_seconds=30)
    assert called.acquire(timeout=PATIENCE)
    assert not called.acquire(timeout=0.05)


def test_it_calls_again_after_an_error_in_what_it_calls():
    called = threading.Semaphore(0)

    def fail():
        called.release()
        raise ZeroDivisionError

    waker = Waker(fail)
    waker.wake(in_seconds=0.01)
    assert called.acquire(timeout=PATIENCE)
    waker.wake(in_seconds=0.01)
    assert called.acquire(timeout=PATIENCE)


def test_an_outage_is_logged_once_and_its_end(monkeypatch):
    log = Recorder()
    monkeypatch.setattr(module, "log", log)
    failing, calls = [True], []

    def call() -> None:
        calls.append(1)
        if failing[0]:
            raise OSError("the memory is full")

    waker = Waker(call)
    for number in range(1, 4):
        waker.wake()
        until(lambda number=number: waker.failures == number)
    failing[0] = False
    waker.wake()
    until(lambda: len(log.lines) == 2)
    assert log.lines == ["wake-up failed, left to the poll", "wake-ups are sent again"]


class Recorder:
    """A logger that keeps the events."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def warning(self, event: str, **_: object) -> None:
        self.lines.append(event)

    info = warning
