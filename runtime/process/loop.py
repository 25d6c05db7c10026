"""Parts of every long-running command: stop on signals, and repeat a step through outages."""

from __future__ import annotations

import _thread
import random
import signal
import threading
from collections.abc import Callable

import structlog

from runtime.process.backoff import RetryPolicy
from runtime.process.outage import Outage
from runtime.telemetry import health

log = structlog.get_logger(__name__)

#: The waits before a command connects again, and before it tries an event or a topic again.
RECONNECTS = RetryPolicy(base_seconds=1.0, cap_seconds=16.0)

_stopped = threading.Event()
#: Functions that stop the commands in other threads, by thread. A restarted command has only one.
_threads: dict[int, Callable[[], None]] = {}


def stop_on_signals(also: Callable[[], None] = lambda: None) -> threading.Event:
    """Return an event that SIGTERM and SIGINT set. They also call `also`.

    The signal may interrupt the main thread inside `wait` while it holds the event's lock, and a handler that
    needs the same lock would wait for ever. Another thread therefore sets the event and calls `also`.

    In a thread other than the main one, the signals of the main thread's last call set this event, too, and
    one process can run several commands (local.background). Each has its own event: when one fails, it may
    set its own while the others continue.
    """
    global _stopped
    stopped = threading.Event()

    def stop_this() -> None:
        stopped.set()
        also()

    if threading.current_thread() is not threading.main_thread():
        _threads[threading.get_ident()] = stop_this
        if _stopped.is_set():
            stop_this()
        return stopped
    _threads.clear()
    _stopped = stopped

    def stop() -> None:
        stop_this()
        for stop_other in list(_threads.values()):
            stop_other()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _thread.start_new_thread(stop, ()))
    return stopped


def pause_after(failures: int, *, policy: RetryPolicy | None = None) -> float:
    """Return the seconds to wait after so many failures in a row, by default as `RECONNECTS` says."""
    return (policy or RECONNECTS).delay(attempt=failures, chance=random.random())  # noqa: S311


def run_until_stopped(
    *,
    step: Callable[[], None],
    stopped: threading.Event,
    errors: tuple[type[Exception], ...],
    reconnect: Callable[[], None],
    describe: Callable[[Exception], str],
    policy: RetryPolicy | None = None,
) -> None:
    """Call `step` repeatedly until `stopped`. `step` itself waits, with `health.wait`.

    After one of `errors` (a server is away), log `describe(error)`, call `reconnect`, which drops the
    connection, and wait for `pause_after`. Log only the first of the same descriptions until a step succeeds,
    which also resets the wait. Raise every other error.
    """
    failures, outage = 0, Outage(log)
    while not stopped.is_set():
        health.beat()
        try:
            step()
            failures = 0
            outage.end()
        except errors as error:
            failures += 1
            seconds = pause_after(failures, policy=policy)
            outage.warn(describe(error), error)
            reconnect()
            health.beat(within_seconds=seconds + health.WITHIN_SECONDS)
            stopped.wait(seconds)
