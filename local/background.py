"""`python -m local.background`: relay, consumer, standby and partitions as threads of one process.

With FOLLOW_WAL=1 the follower of the WAL is a fifth. For `make run`, where a process of each would take 90 MB
of memory that a small shop does not need. The commands are those of a deployment, which gives each its own
process. A part that fails starts again, later each time, and the others continue. A part keeps what it has
not finished in PostgreSQL or at the broker, as any process that is killed.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable

import django
import structlog
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from config.roles import MANAGE_COMMANDS, switch_from
from outbox.process.backoff import ceiling, jitter
from outbox.process.loop import stop_on_signals

log = structlog.get_logger(__name__)

PARTS = ["relay", "consumer", "standby", "partitions"]
if switch_from("FOLLOW_WAL", environ=os.environ):
    PARTS.append("follower")

#: Seconds before a part starts again: 1, 2, 4 … 60 with jitter. A part that ran for a minute begins at 1.
BASE_SECONDS, CAP_SECONDS = 1.0, 60.0
STEADY_SECONDS = 60.0


def keep_running(part: str, *, run: Callable[[], object], stopped: threading.Event) -> None:
    """Call `run` until `stopped`, again whenever it returns or fails."""
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
        failures = 1 if time.monotonic() - began > STEADY_SECONDS else failures + 1
        longest = ceiling(retry=failures, base_seconds=BASE_SECONDS, cap_seconds=CAP_SECONDS)
        seconds = jitter(seconds=longest, low=0.5, high=1.0, chance=random.random())  # noqa: S311
        log.warning("a part of the background process starts again", part=part, seconds=round(seconds, 1))
        connections.close_all()
        _let_drains_start(stopped)
        stopped.wait(seconds)


def _let_drains_start(stopped: threading.Event) -> None:
    """Undo `drain.stop`, which the follower calls when it fails: the standby drains in this process, too."""
    from notifications.delivery import drain, process

    if process.current().stopping.is_set():
        process.start_anew()
    if stopped.is_set():  # meanwhile
        drain.stop()


def main() -> None:
    """Run all parts until a signal."""
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
