"""Gunicorn's settings for local runs: a worker ends with its master.

Without them, workers outlive a killed master for up to `graceful_timeout` to finish their connections. They
hold the listening socket meanwhile, and the new master cannot bind the port.
"""

from __future__ import annotations

import signal
from typing import Any

from config.local.guard import end_with_parent


def post_fork(arbiter: Any, _worker: Any) -> None:
    """Tie each new worker to its master."""
    end_with_parent(parent=arbiter.pid, number=signal.SIGKILL)
