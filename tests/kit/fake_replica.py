"""A replica for tests in one process: the primary under a second name, whose position a test sets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections

from runtime.database import replica
from runtime.database.replica import ALIAS


class FakeReplica:
    """The positions of a primary and of its replica, and the clock that `replica` reads."""

    def __init__(self) -> None:
        self.clock = 1000.0
        self.written = 100
        self.lag = 0  # -1 below `written` for each unit
        self.promoted = False
        self.known = replica.Replica(now=lambda: self.clock)

    def replayed(self) -> int:
        return -1 if self.promoted else self.written - self.lag

    def pass_seconds(self, seconds: int, *, writes: int = 1) -> list[bool]:
        """Let `watch` look once a second while the primary writes. Return what it finds."""
        found = []
        for _ in range(seconds):
            self.clock += 1.0
            self.written += writes
            found.append(self.known.look())
        return found


@contextlib.contextmanager
def faked(settings: Any, patch: pytest.MonkeyPatch) -> Iterator[FakeReplica]:
    """Yield a replica that is read, as in a web process whose REPLICA_DATABASE_URL is set."""
    made = FakeReplica()
    patch.setitem(connections.settings, ALIAS, {**connections.settings["default"]})
    database = connections[ALIAS]
    # Django lets a test connect only to databases that existed before it.
    patch.setattr(database, "ensure_connection", lambda: None if database.connection else database.connect())
    settings.DATABASE_ROUTERS = ["runtime.database.replica.Router"]
    patch.setattr(replica, "is_set", lambda: True)
    patch.setattr(replica, "_replica", made.known)
    patch.setattr(replica, "_written", lambda: made.written)
    patch.setattr(replica, "_replayed", made.replayed)
    made.pass_seconds(3)
    yield made
    database.close()
    del connections[ALIAS]
