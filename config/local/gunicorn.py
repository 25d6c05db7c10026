"""Gunicorn's settings where a supervisor starts the web process again: workers that end with their master.

Without this, workers outlive a killed master for up to `graceful_timeout` to finish their connections. They
hold the listening socket meanwhile, and the new master cannot bind the port.
"""

from __future__ import annotations

import signal
from typing import Any

from config.local.guard import end_with_parent


def post_fork(arbiter: Any, _worker: Any) -> None:
    """Run in each new worker."""
    end_with_parent(parent=arbiter.pid, number=signal.SIGKILL)
