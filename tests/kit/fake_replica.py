"""A replica for tests in one process: the primary under a second name, whose age a test sets."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError, connections

from runtime.database import replica
from runtime.database.replica import ALIAS, LIMIT_SECONDS


class FakeReplica:
    """The age of the replica's last commit in seconds, and the clock that `replica` reads."""

    def __init__(self) -> None:
        self.clock = 1000.0
        self.age = 0.0

    def check_age(self) -> None:
        if self.age > LIMIT_SECONDS:
            raise OperationalError("behind")

    def fail(self) -> None:
        """Let every read fail from now on."""
        self.age = math.inf


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
    patch.setattr(replica, "_is_read", True)
    patch.setattr(replica, "_skipped_until", 0.0)
    patch.setattr(replica, "time", SimpleNamespace(monotonic=lambda: made.clock))
    patch.setattr(replica, "_check_age", made.check_age)
    yield made
    database.close()
    del connections[ALIAS]
