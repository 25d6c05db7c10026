"""The heartbeat of consume_cdc, which also tells alerts that the shop uses the trigger."""

from __future__ import annotations

import math
import time

from django.db import DatabaseError, InterfaceError, connections

from outbox.models import Heartbeat

BEAT_SECONDS = 5.0


class Beats:
    """Write the heartbeat `name` at most once in `BEAT_SECONDS`. Leave it out while the database is away."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._beat_at = -math.inf  # monotonic

    def beat(self) -> None:
        if time.monotonic() - self._beat_at < BEAT_SECONDS:
            return
        self._beat_at = time.monotonic()
        try:
            Heartbeat.beat(name=self._name)
        except (DatabaseError, InterfaceError):
            connections.close_all()  # so that the next one connects again
