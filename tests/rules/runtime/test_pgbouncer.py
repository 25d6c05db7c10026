"""A pooler in between: how a connection notices it, and what it does then."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection, transaction

from runtime.database.postgres.connection import PoolerFound
from tests.kit.connections import OTHER, ask, database_port, wrapper
from tests.kit.orders import make_order
from tests.kit.pgbouncer import Pooler, needs_pgbouncer
from tests.kit.proxy import Proxy
from tests.kit.waiting import PATIENCE
from tests.kit.words import Order, Prepared

pytestmark = [pytest.mark.django_db(transaction=True), needs_pgbouncer]


@pytest.fixture(params=["transaction", "session"])
def pooled(request: pytest.FixtureRequest) -> Iterator[int]:
    with Pooler(server=database_port(), pool_mode=request.param, default_pool_size="2") as pooler:
        yield pooler.port


@pytest.fixture
def shared() -> Iterator[int]:
    with Pooler(server=database_port(), default_pool_size="1") as pooler:
        yield pooler.port


class TestWithoutAPooler:
    def test_a_direct_connection_has_none(self):
        with wrapper() as database:
            database.settings_dict["OPTIONS"]["direct"] = "DIRECT_DATABASE_URL"
            assert ask(database) == 42 and not database.is_pooled

    def test_what_only_forwards_bytes_is_none(self):
        with Proxy(port=database_port()) as proxy, wrapper(port=proxy.port) as database:
            assert ask(database) == 42 and not database.is_pooled


class TestAPoolerInAnyMode:
    def test_it_is_noticed_and_nothing_is_prepared(self, pooled):
        with wrapper(port=pooled) as database:
            for number in range(8):
                assert ask(database, Prepared("SELECT %s::int + 1"), [number]) == number + 1
            assert database.is_pooled
            assert ask(database, "SELECT count(*) FROM pg_prepared_statements") == 0

    def test_a_url_for_locks_is_refused_with_a_sentence_that_names_it_at_each_attempt(self, pooled):
        with wrapper(port=pooled) as database:
            database.settings_dict["OPTIONS"]["direct"] = "DIRECT_DATABASE_URL"
            for _ in range(2):
                with pytest.raises(PoolerFound, match="DIRECT_DATABASE_URL leads to a pooler"):
                    ask(database)

    def test_migrations_are_refused(self, pooled):
        with wrapper(port=pooled), pytest.raises(PoolerFound, match="A migration changes settings"):
            call_command("migrate", database=OTHER, verbosity=0)


def test_options_at_connect_would_be_refused(pooled):
    with wrapper(port=pooled) as database:
        database.settings_dict["OPTIONS"]["options"] = "-c plan_cache_mode=force_custom_plan"
        with pytest.raises(OperationalError, match="unsupported startup parameter"):
            ask(database)


class TestSharedSessions:
    def test_statements_of_two_clients_of_one_session_do_not_meet(self, shared):
        with wrapper(port=shared) as database:
            other = database.copy()
            try:
                for number in range(4):
                    for mine in (database, other):
                        assert ask(mine, Prepared("SELECT %s::int + 1"), [number]) == number + 1
                pids = {ask(mine, "SELECT pg_backend_pid()") for mine in (database, other)}
                assert len(pids) == 1
            finally:
                other.close()

    def test_a_long_answer_is_read_whole_within_and_without_a_transaction(self, shared):
        for _ in range(5):
            make_order()
        with wrapper(port=shared) as database:
            other = database.copy()
            rows = Order.objects.using(OTHER).values_list("id", flat=True)
            seen = []
            for order in rows.iterator(chunk_size=1):
                seen.append(order)
                ask(other)
            with transaction.atomic(using=OTHER):
                assert list(rows.iterator(chunk_size=1)) == seen
            assert len(seen) == 5
            other.close()

    def test_a_server_that_is_silent_behind_it_keeps_one_thread_waiting_and_not_all(self):
        errors: list[str] = []

        def connect() -> None:
            with wrapper(port=pooler.port, connect_timeout=4, deadline=4.0) as database:
                try:
                    ask(database)
                except OperationalError as error:
                    errors.append(str(error))

        with Proxy(port=database_port()) as proxy, Pooler(server=proxy.port) as pooler:
            connect()  # pgbouncer knows now how to welcome others
            assert errors == []
            proxy.drop()
            connect()
            threads = [threading.Thread(target=connect) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE)
            proxy.forward()
        assert len(errors) == 9
        assert sum("another thread is trying" in error for error in errors) >= 4, errors


def test_other_tests_of_this_process_are_not_pooled():
    assert ask(connection) == 42 and not connection.is_pooled
