"""Times of the product that tests shorten. The fixture `fast` restores them at the end of a test."""

from __future__ import annotations

import pytest

from events.publishing import floor, shards
from events.transports import redis as streams
from operations import probes
from outbox.gate import shared_gate
from retention.partitions import indexes
from runtime.database.postgres import base
from runtime.process.backoff import RetryPolicy
from runtime.process.redis_client import make_client
from tests.kit.words import consumer, detach, inbound, job_times, kafka, locks, loop, pause_watch


class Fast:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._set, self._setitem = monkeypatch.setattr, monkeypatch.setitem

    def retries(self) -> None:
        """Ask a neighbour that is away again at once."""
        self._set(loop, "RECONNECTS", RetryPolicy(base_seconds=0.001, cap_seconds=16.0))

    def pauses(self) -> None:
        """See a pause and its end at once."""
        self._set(pause_watch, "SECONDS", 0.0)

    def health_checks(self) -> None:
        """Ask each idle connection for its health, however recently it answered."""
        self._set(base, "RECENT_SECONDS", 0.0)

    def jobs(self) -> None:
        """Try a failed job again at once."""
        self._set(job_times, "RETRIES", RetryPolicy(base_seconds=0.0, cap_seconds=0.0))

    def tokens(self) -> None:
        """Check a token before each event of a list."""
        self._set(inbound, "TOKEN_SECONDS", 0.0)

    def locks(self, timeout: str) -> None:
        """Let a rollover and a migration wait so long for a table's lock, such as "100ms"."""
        self._set(locks, "LOCK_TIMEOUT", timeout)
        self._set(indexes, "LOCK_TIMEOUT", timeout)

    def detaching(self) -> None:
        """Try only for a moment to finish a detach behind a reader."""
        self._set(detach, "PATIENCE_SECONDS", 0.3)
        self._set(detach, "READERS_SECONDS", 0.3)

    def valkey(self) -> None:
        """Give up on a frozen Valkey as early as the product does."""
        self._setitem(make_client.__kwdefaults__ or {}, "read_seconds", 0.5)
        self._set(probes, "BROKER_SECONDS", 0.5)

    def gate(self) -> None:
        """Ask a Redis that is away again at once."""
        self._set(shared_gate, "AWAY_SECONDS", 0.0)

    # --- events ---
    def shards(self) -> None:
        """Share the shards out at each step of a relay."""
        self._set(shards, "KEEP_SECONDS", 0.0)

    def floor(self) -> None:
        """Let a relay's floor follow at each step."""
        self._set(floor, "TICK_SECONDS", 0.0)

    def replays(self) -> None:
        """Look for requested replays in each round of a consumer."""
        self._set(consumer, "REPLAY_SECONDS", 0.0)

    def acknowledgements(self) -> None:
        """Acknowledge each event at once."""
        self._set(consumer, "ACKNOWLEDGE_SECONDS", 0.0)

    def streams(self) -> None:
        """Renew leases in each round, retry a stream that cannot be read, and wait for no replica."""
        self._set(streams, "KEEP_SECONDS", 0.0)
        self._set(streams, "RETRY_SECONDS", 0.05)
        self._set(streams, "REPLICAS_SECONDS", 0.01)

    def kafka(self) -> None:
        """Wait only a little for a Kafka that is away."""
        self._set(kafka, "METADATA_SECONDS", 1.5)
