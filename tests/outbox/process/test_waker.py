"""Wake-ups cost the caller nothing, come bundled, and survive a broker that is away and a fork."""

from __future__ import annotations

import os
import threading
import time
from types import SimpleNamespace

import pytest

from outbox.process import waker as module
from outbox.process.waker import Waker
from tests.waiting import until


def test_a_thousand_wakes_at_once_enqueue_few_tasks_and_at_least_one_after_the_last():
    enqueued = []
    waker = Waker(lambda: enqueued.append(1), interval_seconds=0.2)
    for _ in range(1000):
        waker.wake()
    until(lambda: not waker._event.is_set() and bool(enqueued))
    assert 1 <= len(enqueued) <= 3


def test_it_waits_longer_while_wake_ups_keep_coming_and_not_after_a_pause(monkeypatch):
    slept, calls, idle = [], [], threading.Event()

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) in (1, 2, 4):
            waker.wake()
        if len(slept) in (3, 5):
            idle.set()

    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleep))
    waker = Waker(lambda: calls.append(1), interval_seconds=1.0, busy_seconds=3.0)
    waker.wake()
    assert idle.wait(20)
    idle.clear()
    waker.wake()
    assert idle.wait(20)
    assert slept == [1.0, 3.0, 3.0, 1.0, 3.0] and len(calls) == 5


def test_a_wake_up_that_is_already_set_takes_no_lock(monkeypatch):
    release, entered = threading.Event(), threading.Event()
    waker = Waker(lambda: entered.set() or release.wait(20), interval_seconds=0)
    waker.wake()
    assert entered.wait(20)
    waker.wake()  # sets it; the thread is still busy
    monkeypatch.setattr(waker._event, "set", lambda: pytest.fail("it was set already"))
    waker.wake()
    release.set()


def test_a_blocking_broker_does_not_block_the_caller():
    release = threading.Event()
    waker = Waker(lambda: release.wait(20), interval_seconds=0)
    try:
        for _ in range(100):
            waker.wake()  # would take 20 s each if it waited
    finally:
        release.set()


def test_a_broker_that_is_away_is_counted_and_asked_again_at_the_next_wake():
    calls = []

    def enqueue():
        calls.append(1)
        raise ConnectionError("away")

    waker = Waker(enqueue, interval_seconds=0)
    waker.wake()
    until(lambda: waker.failures == 1)
    waker.wake()
    until(lambda: waker.failures == 2)
    assert len(calls) == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns of any fork beside threads
def test_a_forked_child_has_a_thread_of_its_own():
    read, write = os.pipe()
    waker = Waker(lambda: os.write(write, b"woken"), interval_seconds=0)
    waker.wake()
    assert os.read(read, 10) == b"woken"
    child = os.fork()
    if child == 0:
        waker.wake()
        time.sleep(5)
        os._exit(0)
    try:
        assert os.read(read, 10) == b"woken"
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
