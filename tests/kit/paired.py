"""Shops whose PostgreSQL has a second server that takes over."""

from __future__ import annotations

from local.servers import EmbeddedPostgres
from tests.kit.failover import Pair
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
