"""A part of the local run's background process that fails starts again, and the others continue."""

from __future__ import annotations

import threading

import pytest
from django.core.management.base import CommandError

from local import background


class Stop(threading.Event):
    """Keeps the waits, takes no time for them, and is set after `most`."""

    def __init__(self, *, most: int) -> None:
        super().__init__()
        self.waits: list[float] = []
        self._most = most

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        if len(self.waits) >= self._most:
            self.set()
        return self.is_set()


@pytest.mark.parametrize(
    "error", [None, ValueError("poison"), CommandError("not the owner"), SystemExit(1), MemoryError()]
)
def test_a_part_starts_again_however_it_ends_and_waits_longer_each_time(error):
    calls = []

    def run() -> None:
        calls.append(1)
        if error is not None:
            raise error

    stopped = Stop(most=8)
    background.keep_running("relay", run=run, stopped=stopped)
    assert len(calls) == 8
    assert stopped.waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_part_that_ran_for_long_starts_again_soon(monkeypatch):
    monkeypatch.setattr(background, "STEADY_SECONDS", -1.0)
    stopped = Stop(most=4)
    background.keep_running("relay", run=lambda: None, stopped=stopped)
    assert max(stopped.waits) <= 1


def test_a_part_that_fails_leaves_the_others_alone(monkeypatch):
    monkeypatch.setattr(background, "BASE_SECONDS", 0.001)
    stopped, fourth, calls = threading.Event(), threading.Event(), {"bad": 0, "good": 0}

    def bad() -> None:
        calls["bad"] += 1
        if calls["bad"] > 3:
            fourth.set()
            stopped.wait(30)
            return
        raise ValueError("poison")

    def good() -> None:
        calls["good"] += 1
        stopped.wait(30)

    parts = [
        threading.Thread(target=background.keep_running, args=[name], kwargs={"run": run, "stopped": stopped})
        for name, run in (("bad", bad), ("good", good))
    ]
    for part in parts:
        part.start()
    assert fourth.wait(30)
    stopped.set()
    for part in parts:
        part.join(30)
    assert calls == {"bad": 4, "good": 1}
