"""The command of each kind of process, for local runs, the tests with real processes, and the benchmarks."""

from __future__ import annotations

import sys

from config import roles
from config.local.machine import HOST


def commands(*, port: int, web_workers: int | None = None) -> dict[str, list[str]]:
    """Return the command of each kind of process; the web process listens on `port`.

    `background` runs the parts of config.local.background.
    """
    found = roles.commands(host=HOST, port=port, processes=web_workers)
    return found | {"background": [sys.executable, "-m", "config.local.background"]}
