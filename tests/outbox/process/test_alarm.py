"""A timer that wakes at the earliest time that anybody asked for."""

from __future__ import annotations

import threading

from outbox.process.alarm import Alarm


def test_it_rings_at_the_earliest_time_and_forgets_the_later_one():
    rung = threading.Semaphore(0)
    alarm = Alarm(rung.release)
    alarm.set(60)
    alarm.set(0.01)
    alarm.set(30)
    assert rung.acquire(timeout=10)
    assert not rung.acquire(timeout=0.05)


def test_it_rings_again_after_an_error_in_what_it_calls():
    rung = threading.Semaphore(0)

    def fail():
        rung.release()
        raise ZeroDivisionError

    alarm = Alarm(fail)
    alarm.set(0)
    assert rung.acquire(timeout=10)
    alarm.set(0)
    assert rung.acquire(timeout=10)
