"""A Redis that was the primary, and is a replica now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from local.machine import HOST, free_port
from local.servers import EmbeddedValkey
from tests.kit.words import make_client


@pytest.fixture
def server(tmp_path: Path) -> Iterator[redis.Redis]:
    """Return a client of a server of the test's own."""
    valkey = EmbeddedValkey(data=tmp_path / "valkey", port=free_port(), throwaway=True)
    valkey.start(log=tmp_path / "valkey.log")
    try:
        with redis.Redis(host=HOST, port=valkey.port) as client:
            yield client
    finally:
        valkey.stop()


def test_a_client_leaves_a_server_that_refuses_writes(server):
    address = server.connection_pool.connection_kwargs
    client = make_client(url=f"redis://{HOST}:{address['port']}/0", read_seconds=10)
    before = client.client_id()
    assert client.set("key", "1")
    server.replicaof(HOST, "1")
    with pytest.raises(redis.ConnectionError, match="The connection was closed"):
        client.set("key", "2")
    with pytest.raises(redis.ConnectionError, match="The connection was closed"), client.pipeline() as pipe:
        pipe.set("key", "2").execute()
    server.replicaof("NO", "ONE")
    assert client.set("key", "3")
    assert client.client_id() != before
    client.close()
