"""`python -m config.local.background`: relay, consumer, standby and partitions as threads of one process.

With FOLLOW_WAL=1 the follower of the WAL is a fifth. For `make run`, where a process of each would take 90 MB
of memory that a small shop does not need. The commands are those of a deployment, which runs each by itself.
When one ends, all end, and the supervisor starts them again. What each owes is in PostgreSQL or at the
broker, as for any process that is killed.
"""

from __future__ import annotations

import os
import sys
import threading

import django
import structlog
from django.core.management import call_command
from django.core.management.base import BaseCommand

from config.local.files import is_on
from outbox.core.loop import stop_on_signals

log = structlog.get_logger(__name__)

PARTS = {
    "relay": ["relay_outbox"],
    "consumer": ["consume_events"],
    "standby": ["drain_outbox", "--standby"],
    "partitions": ["keep_partitions"],
}
if is_on("FOLLOW_WAL", environ=os.environ):
    PARTS["follower"] = ["follow_wal"]


def main() -> int:
    """Run all parts until a signal; return 1 if a part ended by itself."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    django.setup()
    BaseCommand().check()
    stopped = stop_on_signals()
    ended: list[str] = []

    def run(part: str) -> None:
        try:
            call_command(*PARTS[part])
        except BaseException as error:
            log.exception("a part of the background process failed", part=part, error=str(error))
        if not stopped.is_set():
            ended.append(part)
            log.error("a part of the background process ended, so all do", part=part)
        stopped.set()

    threads = [threading.Thread(target=run, args=[part], name=part) for part in PARTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 1 if ended else 0


if __name__ == "__main__":
    sys.exit(main())
