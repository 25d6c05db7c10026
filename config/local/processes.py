"""The commands of the processes that make up orderpost: for local runs, the tests with real processes, and
the benchmarks. docker/ has its own, for a real deployment.
"""

from __future__ import annotations

import sys

from config.local.machine import HOST


def commands(*, port: int, web_workers: int = 2, web_threads: int = 8) -> dict[str, list[str]]:
    """This function will return each kind of process's command; `port` is where the web listens."""
    python = sys.executable
    celery = [python, "-m", "celery", "-A", "config", "--quiet"]
    return {
        "web": [
            *(python, "-m", "gunicorn", "config.wsgi:application", "--bind", f"{HOST}:{port}"),
            *("--worker-class", "gthread", "--workers", str(web_workers), "--threads", str(web_threads)),
            *("--config", "python:config.local.gunicorn"),
            *("--no-control-socket", "--keep-alive", "75", "--graceful-timeout", "10"),
            *("--log-level", "warning", "--logger-class", "config.logs.GunicornLogger"),
        ],
        "worker": [
            *(*celery, "worker", "--pool", "threads"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat"),
        ],
        "beat": [*celery, "beat"],
        "standby": [python, "manage.py", "drain_outbox", "--standby"],
        "relay": [python, "manage.py", "relay_outbox"],
        "consumer": [python, "manage.py", "consume_events"],
        "partitions": [python, "manage.py", "keep_partitions"],
    }
