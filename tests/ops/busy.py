"""A Celery application with our settings of broker and worker, and one task that waits for a file."""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery import Celery


def make_app(broker: str = "") -> Celery:
    # Not the current application, because the program's tasks use that one in the same test process.
    made = Celery("busy", broker=broker or None, set_as_current=False)
    made.config_from_object("django.conf:settings", namespace="CELERY")
    return made


app = make_app()


@app.task(name="busy")
def busy(name: str, until: str) -> None:
    """Wait until the file `until` exists, then write the file `name`."""
    directory = Path(os.environ["BUSY_DIRECTORY"])
    while not (directory / until).exists():
        time.sleep(0.02)
    (directory / name).touch()
