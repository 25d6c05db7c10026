"""Fixtures that every folder of tests shares; the servers themselves are the plugin tests.servers."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import redis


@pytest.fixture
def valkey_url() -> Iterator[str]:
    """The URL of this test process's own Valkey database, empty."""
    url = os.environ["REDIS_URL"]
    with redis.Redis.from_url(url) as client:
        client.flushdb()
        yield url
        client.flushdb()
