"""What is read of PostgreSQL itself for the metrics."""

from __future__ import annotations

import psycopg
import pytest

from outbox.database import server
from tests.kit.api import Api
from tests.kit.months import dsn

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_lasting_slot_that_nobody_reads_is_shown_with_what_it_keeps():
    with psycopg.connect(dsn(), autocommit=True) as session:
        session.execute("SELECT pg_create_logical_replication_slot('tried_' || pg_backend_pid(), 'pgoutput')")
        session.execute("SELECT pg_create_logical_replication_slot('passing', 'pgoutput', temporary => true)")
        try:
            (slot,) = server.slots()
            assert not slot.is_active
            session.execute(
                "SELECT pg_logical_emit_message(false, 'test', repeat('x', 100000)), pg_switch_wal()"
            )
            (later,) = server.slots()
            assert later.kept >= slot.kept + 100_000
            text = Api().get("/metrics").content.decode()
            assert f'orderpost_replication_slot_active{{slot="{slot.name}"}} 0.0' in text
            assert f'orderpost_replication_slot_kept_bytes{{slot="{slot.name}"}}' in text
        finally:
            session.execute("SELECT pg_drop_replication_slot('tried_' || pg_backend_pid())")
