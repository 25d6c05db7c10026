"""The heartbeat of consume_cdc, which also tells alerts that the shop uses the trigger."""

from __future__ import annotations

from django.db import DatabaseError, InterfaceError, connections

from outbox.models import Heartbeat


class Beats:
    """Write the heartbeat `name`. Leave it out while the database is away."""

    def __init__(self, name: str) -> None:
        self._name = name

    def beat(self) -> None:
        try:
            Heartbeat.beat(name=self._name, every=5.0)
        except (DatabaseError, InterfaceError):
            connections.close_all()  # so that the next one connects again
