"""Wake-ups cost the caller nothing, come bundled, and survive a broker that is away and a fork."""

from __future__ import annotations

import os
import threading
import time

import pytest

from outbox.core.waker import Waker


def wait_until(condition, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def test_a_thousand_wakes_at_once_enqueue_few_tasks_and_at_least_one_after_the_last():
    enqueued = []
    waker = Waker(lambda: enqueued.append(1), interval=0.2)
    for _ in range(1000):
        waker.wake()
    wait_until(lambda: not waker._event.is_set() and bool(enqueued))
    assert 1 <= len(enqueued) <= 3


def test_a_blocking_broker_does_not_block_the_caller():
    release = threading.Event()
    waker = Waker(lambda: release.wait(20), interval=0)
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

    waker = Waker(enqueue, interval=0)
    waker.wake()
    wait_until(lambda: waker.failures == 1)
    waker.wake()
    wait_until(lambda: waker.failures == 2)
    assert len(calls) == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns of any fork beside threads
def test_a_forked_child_has_a_thread_of_its_own():
    read, write = os.pipe()
    waker = Waker(lambda: os.write(write, b"woken"), interval=0)
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
