"""Puts a process's clock off by CHAOS_CLOCK seconds: on that process's path alone (tests.chaos.faults)."""

import datetime as dt
import os

if offset := float(os.environ.get("CHAOS_CLOCK") or 0):
    import time_machine

    time_machine.travel(dt.datetime.now(dt.UTC) + dt.timedelta(seconds=offset), tick=True).start()
