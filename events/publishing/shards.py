"""Share the shards of the events among the relays, through advisory locks of their database sessions.

PostgreSQL frees a lock when it notices the end of its session. A relay that loses its session may still
publish the batch that it has read, while another relay takes the shard. Consumers drop the repeats. The
relays count each other by heartbeats.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import socket
import time

from django.db import DatabaseError, InterfaceError, connections
from django.db.models.functions import Now

from events.models import SHARDS
from runtime.models import Heartbeat

KEEP_SECONDS, GONE_SECONDS = 1.0, 3.0
#: The job of the heartbeats by which relays count each other.
RELAY = "relay"
LOCK = 0x72656C61  # "rela": the first half of each shard's lock


class Shards:
    """The shards that one relay owns. `using` must be a direct connection, not one through a pooler."""

    def __init__(self, *, using: str) -> None:
        self.using = using
        self.name = f"{RELAY}@{socket.gethostname()[:20]}:{os.getpid()}:{id(self) % 9973}"
        self.owned: set[int] = set()
        self._kept_at = 0.0

    def keep(self) -> None:
        """Give back shards or take free ones, to own a fair share. Do so at most once a second."""
        if time.monotonic() - self._kept_at < KEEP_SECONDS:
            return
        self._kept_at = time.monotonic()
        fair = -(-SHARDS // self._count_relays())
        with connections[self.using].cursor() as cursor:
            # The locks belong to the session: after a lost connection this relay owns none.
            cursor.execute(
                "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND objsubid = 2"
                " AND pid = pg_backend_pid()",
                [LOCK],
            )
            self.owned = {shard for (shard,) in cursor.fetchall()}
        for shard in sorted(self.owned)[fair:]:
            self._unlock(shard)
        for shard in random.sample(range(SHARDS), SHARDS):
            if len(self.owned) >= fair:
                break
            if shard not in self.owned:
                self._try_lock(shard)

    def release(self) -> None:
        """Give back all shards, so that other relays can take them at once."""
        try:
            # Without a session there are no locks, and opening one takes seconds during an outage.
            if connections[self.using].connection is not None:
                for shard in sorted(self.owned):
                    self._unlock(shard)
                Heartbeat.objects.using(self.using).filter(name=self.name).delete()
        except (DatabaseError, InterfaceError):
            connections[self.using].close()  # PostgreSQL frees the locks with the session
        self.owned.clear()
        self._kept_at = 0.0

    def _count_relays(self) -> int:
        heartbeats = Heartbeat.objects.using(self.using)
        heartbeats.bulk_create(
            [Heartbeat(name=self.name, beat_at=Now(), since=Now())],
            update_conflicts=True,
            unique_fields=["name"],
            update_fields=["beat_at"],
        )
        recent = Now() - dt.timedelta(seconds=GONE_SECONDS)
        return max(1, heartbeats.filter(name__startswith=f"{RELAY}@", beat_at__gt=recent).count())

    def _try_lock(self, shard: int) -> None:
        with connections[self.using].cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", [LOCK, shard])
            if cursor.fetchone()[0]:
                self.owned.add(shard)

    def _unlock(self, shard: int) -> None:
        with connections[self.using].cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [LOCK, shard])
        self.owned.discard(shard)
