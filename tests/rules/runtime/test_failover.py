"""A PostgreSQL or Valkey that was chosen because it takes writes, and does not take them any more."""

from __future__ import annotations

import functools
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from django.db import OperationalError, connection, transaction

from local.machine import HOST, free_port
from local.servers import EmbeddedValkey
from tests.kit import connections
from tests.kit.connections import OTHER
from tests.kit.waiting import PATIENCE
from tests.kit.words import DatabaseWrapper, make_client

READ_ONLY = "SET default_transaction_read_only = on"
WRITE = "CREATE TEMPORARY TABLE written ()"

#: A connection without the short deadlines of the other tests.
wrapper = functools.partial(connections.wrapper, deadline=PATIENCE, connect_timeout=int(PATIENCE))

pytestmark = pytest.mark.django_db(transaction=True)


def run(database: DatabaseWrapper, *statements: str) -> None:
    with database.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def test_of_several_servers_the_one_that_answers_is_used_and_asked_first_from_then_on():
    away = free_port()
    port = f"{away},{connection.settings_dict['PORT']}"
    with wrapper(host=f"{HOST},{HOST}", port=port, target_session_attrs="read-write") as database:
        run(database, WRITE)
        database.close()
        with socket.create_server((HOST, away)) as back:
            run(database, WRITE)
            assert not select.select([back], [], [], 0)[0], "nobody connected to it"


def test_a_refused_write_closes_the_connection_and_the_next_one_works():
    with wrapper() as database:
        run(database, READ_ONLY)
        with pytest.raises(OperationalError, match="read-only transaction; the connection was closed"):
            run(database, WRITE)
        database.close_if_unusable_or_obsolete()  # what Django does after each request
        run(database, WRITE)


def test_a_write_refused_in_a_transaction_ends_it():
    with wrapper() as database:
        run(database, READ_ONLY)
        with pytest.raises(OperationalError, match="closed"), transaction.atomic(using=OTHER):
            run(database, WRITE)
        assert not database.in_atomic_block
        run(database, WRITE)


@pytest.mark.parametrize(("wanted", "usable"), [("read-write", False), ("any", True)])
def test_the_health_check_finds_a_server_that_turned_read_only(fast, wanted, usable):
    fast.health_checks()
    with wrapper(target_session_attrs=wanted) as database:
        run(database, "SELECT 1")
        assert database.is_usable()
        run(database, READ_ONLY)
        assert database.is_usable() is usable


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[redis.Redis]:
    """Return a client of a server of the test's own."""
    server = EmbeddedValkey(data=tmp_path / "valkey", port=free_port(), throwaway=True)
    server.start(log=tmp_path / "valkey.log")
    try:
        with redis.Redis(host=HOST, port=server.port) as client:
            yield client
    finally:
        server.stop()


def test_a_client_leaves_a_server_that_refuses_writes(valkey):
    address = valkey.connection_pool.connection_kwargs
    client = make_client(url=f"redis://{HOST}:{address['port']}/0", read_seconds=10)
    before = client.client_id()
    assert client.set("key", "1")
    valkey.replicaof(HOST, "1")
    with pytest.raises(redis.ConnectionError, match="The connection was closed"):
        client.set("key", "2")
    with pytest.raises(redis.ConnectionError, match="The connection was closed"), client.pipeline() as pipe:
        pipe.set("key", "2").execute()
    valkey.replicaof("NO", "ONE")
    assert client.set("key", "3")
    assert client.client_id() != before
    client.close()
