"""`python -m local.background`: run relay, consumer, standby and partitions as threads of one process.

A deployment runs the same commands, each in its own process. `make run` saves the 90 MB of memory that each
process would take. If a part fails, it starts again after a pause that grows, and the other parts continue.
Its unfinished work stays in PostgreSQL or at the broker, as after a killed process.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import django
import structlog
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from config.roles import MANAGE_COMMANDS
from runtime.process.backoff import NO_JITTER, RetryPolicy
from runtime.process.loop import stop_on_signals

log = structlog.get_logger(__name__)

PARTS = ["relay", "consumer", "standby", "partitions"]

#: The waits before a part starts again. They need no jitter: all parts are of one machine. After a run of a
#: minute they begin again.
RESTARTS = RetryPolicy(base_seconds=1.0, cap_seconds=60.0, jitter=NO_JITTER)
STEADY_SECONDS = 60.0


def keep_running(part: str, *, run: Callable[[], object], stopped: threading.Event) -> None:
    """Call `run` again and again until `stopped`, with a pause whenever it returns or fails."""
    failures = 0
    while not stopped.is_set():
        began = time.monotonic()
        try:
            run()
        except CommandError as error:
            log.error("a part of the background process failed", part=part, error=str(error))
        except BaseException as error:
            log.exception("a part of the background process failed", part=part, error=str(error))
        if stopped.is_set():
            return
        if time.monotonic() - began > STEADY_SECONDS:
            failures = 0
        failures += 1
        seconds = RESTARTS.delay(attempt=failures, chance=1.0)
        log.warning("a part of the background process starts again", part=part, seconds=seconds)
        connections.close_all()
        stopped.wait(seconds)


def main() -> None:
    """Run all parts until SIGTERM or SIGINT."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    django.setup()
    BaseCommand().check()
    stopped = stop_on_signals()

    def run(part: str) -> None:
        keep_running(part, run=lambda: call_command(*MANAGE_COMMANDS[part]), stopped=stopped)

    threads = [threading.Thread(target=run, args=[part], name=part) for part in PARTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
