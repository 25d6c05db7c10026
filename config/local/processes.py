"""The command of each kind of process.

For local runs, the tests with real processes, and the benchmarks. docker/ has the commands of a deployment.
"""

from __future__ import annotations

import sys

from config.local.machine import HOST


def commands(*, port: int, web_workers: int | None = None) -> dict[str, list[str]]:
    """Return the command of each kind of process; the web process listens on `port`.

    `background` is relay, consumer, standby and partitions in one.
    """
    python = sys.executable
    celery = [python, "-m", "celery", "-A", "config", "--quiet"]
    return {
        "web": [
            *(python, "-m", "config.web", "--host", HOST, "--port", str(port)),
            *(("--workers", str(web_workers)) if web_workers else ()),
        ],
        "worker": [
            *(*celery, "worker", "--pool", "threads"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat"),
        ],
        "beat": [*celery, "beat"],
        "standby": [python, "manage.py", "drain_outbox", "--standby"],
        "relay": [python, "manage.py", "relay_outbox"],
        "consumer": [python, "manage.py", "consume_events"],
        "cdc": [python, "manage.py", "consume_cdc"],
        "partitions": [python, "manage.py", "keep_partitions"],
        "follower": [python, "manage.py", "follow_wal"],
        "background": [python, "-m", "config.local.background"],
    }
