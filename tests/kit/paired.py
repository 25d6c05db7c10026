"""Shops whose PostgreSQL or Valkey has a second server that takes over."""

from __future__ import annotations

from typing import Any

import redis

from local.servers import EmbeddedPostgres
from tests.kit.failover import Pair, ValkeyPair
from tests.kit.shop import Shop

#: No worker dies here, and no outage is as long as a lease: so no mail may be sent twice.
SETTINGS = {"LEASE_SECONDS": "60", "DATABASE_TIMEOUT": "4"}


class PairedShop(Shop):
    """A shop whose PostgreSQL has a synchronous standby."""

    def __init__(self, *, durable_valkey: bool = False, **settings: str) -> None:
        super().__init__(durable_valkey=durable_valkey)
        self.settings = settings
        self.pair = Pair(folder=self.folder)
        self.postgres = self.pair  # type: ignore[assignment]  # has what a shop needs of it

    def first_postgres(self) -> EmbeddedPostgres:
        return self.pair.primary


class ValkeyPairedShop(Shop):
    """A shop whose Valkey has a replica."""

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self.settings = settings
        self.pair = ValkeyPair(folder=self.folder)
        self.valkey = self.pair  # type: ignore[assignment]  # has what a shop needs of it


def first_times(shop: Shop, topic: str) -> dict[str, int]:
    """Return the millisecond of each order's first entry. Entries of two streams may share one."""
    with redis.Redis.from_url(shop.valkey.url, decode_responses=True) as client:
        entries: Any = client.xrange(topic)
    times: dict[str, int] = {}
    for id, fields in entries:
        times.setdefault(fields["key"], int(id.partition("-")[0]))
    return times
