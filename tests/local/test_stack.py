"""The local run is up when its worker accepts e-mails."""

from __future__ import annotations

import threading
from pathlib import Path

import redis

from local.machine import free_port
from local.servers import EmbeddedValkey
from local.stack import is_worker_waiting
from tests.kit.waiting import until


def test_a_worker_that_blocks_on_its_queue_waits_for_tasks(tmp_path: Path) -> None:
    server = EmbeddedValkey(data=tmp_path / "valkey", port=free_port(), throwaway=True)
    server.start(log=tmp_path / "log")
    try:
        with redis.Redis.from_url(server.url) as client, redis.Redis.from_url(server.url) as other:
            waiting = threading.Thread(target=client.brpop, args=["a-queue"])
            assert not is_worker_waiting(url=server.url)
            waiting.start()
            until(lambda: is_worker_waiting(url=server.url))
            other.lpush("a-queue", "a task")
            waiting.join()
    finally:
        server.stop()


def test_a_broker_that_is_away_is_not_waited_for() -> None:
    assert is_worker_waiting(url=f"redis://127.0.0.1:{free_port()}/0")
