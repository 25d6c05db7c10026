"""A pooler between: who shares sessions, and what is done about it.

pgbouncer before 1.21 keeps no prepared statements for its clients.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection, transaction

from orders.models import Order
from outbox.database.postgres import base
from outbox.database.postgres.cursor import Prepared
from outbox.database.postgres.sessions import SharedSession
from tests.factories import make_order
from tests.outbox.database.test_postgres import OTHER, ask, database_port, wrapper
from tests.pgbouncer import Pooler, needs_pgbouncer
from tests.proxy import Proxy

pytestmark = [pytest.mark.django_db(transaction=True), needs_pgbouncer]


@pytest.fixture(autouse=True)
def asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_shared", {})


@pytest.fixture
def shared() -> Iterator[int]:
    with Pooler(server=database_port(), default_pool_size="1") as pooler:
        yield pooler.port


@pytest.fixture(params=["1", "5"])
def unshared(request: pytest.FixtureRequest) -> Iterator[int]:
    with Pooler(server=database_port(), pool_mode="session", default_pool_size=request.param) as pooler:
        yield pooler.port


class TestSessionsOfOnesOwn:
    def test_a_direct_connection_is_never_asked_further(self, monkeypatch):
        monkeypatch.setattr(base, "has_shared_sessions", None)
        with wrapper() as database:
            assert ask(database) == 42 and not database.sessions_shared

    def test_what_only_forwards_bytes_is_no_pooler(self, monkeypatch):
        monkeypatch.setattr(base, "has_shared_sessions", None)
        with Proxy(port=database_port()) as proxy, wrapper(port=proxy.port) as database:
            assert ask(database) == 42 and not database.sessions_shared

    def test_a_pooler_in_session_mode_gives_them_even_when_it_has_only_one(self, unshared):
        with wrapper(port=unshared) as database:
            database.settings_dict["OPTIONS"]["own_session"] = "DIRECT_DATABASE_URL"
            assert ask(database, Prepared("SELECT 42")) == 42 and not database.sessions_shared
            assert ask(database, "SELECT count(*) FROM pg_prepared_statements") == 1

    def test_statements_are_prepared_and_planned_for_their_values(self, unshared):
        with wrapper(port=unshared) as database:
            database.settings_dict["OPTIONS"]["prepare_threshold"] = 1
            for number in range(8):
                assert ask(database, "SELECT %s::int + 1", [number]) == number + 1
            assert ask(database, "SELECT current_setting('plan_cache_mode')") == "force_custom_plan"
            assert ask(database, "SELECT count(*) FROM pg_prepared_statements") >= 1


def test_options_at_connect_would_be_refused(unshared):
    with wrapper(port=unshared) as database:
        database.settings_dict["OPTIONS"]["options"] = "-c plan_cache_mode=force_custom_plan"
        with pytest.raises(OperationalError, match="unsupported startup parameter"):
            ask(database)


class TestSharedSessions:
    @pytest.mark.parametrize("changes", [{}, {"server_round_robin": "1"}, {"server_reset_query_always": "1"}])
    def test_they_are_noticed_beside_others_that_use_them(self, changes):
        with Pooler(server=database_port(), default_pool_size="5", **changes) as pooler:
            held = []
            for _ in range(3):  # three sessions are in use, and come back to the pool one by one
                with wrapper(port=pooler.port) as database:
                    ask(database, "BEGIN")
                    held.append(database.connection)
                    database.connection = None
            for other in held:
                other.rollback()
            base._shared.clear()
            with wrapper(port=pooler.port) as database:
                assert ask(database) == 42 and database.sessions_shared
            for other in held:
                other.close()

    @pytest.mark.parametrize("threshold", [None, 1])
    def test_statements_are_not_prepared_unless_that_is_asked_for(self, shared, threshold):
        with wrapper(port=shared) as database:
            database.settings_dict["OPTIONS"]["prepare_threshold"] = threshold
            other = database.copy()
            try:
                for number in range(4):
                    for mine in (database, other):
                        assert ask(mine, Prepared("SELECT %s::int + 1"), [number]) == number + 1
                pids = {ask(mine, "SELECT pg_backend_pid()") for mine in (database, other)}
                assert len(pids) == 1
                assert ask(database, "SELECT count(*) FROM pg_prepared_statements") == 0
            finally:
                other.close()
        with wrapper(port=shared) as database:
            database.settings_dict["OPTIONS"]["prepared"] = True  # PREPARED_STATEMENTS=on
            assert ask(database, Prepared("SELECT 42")) == 42
            assert ask(database, "SELECT count(*) FROM pg_prepared_statements") == 1

    def test_a_url_for_locks_is_refused_with_a_sentence_that_names_it_at_each_attempt(self, shared):
        with wrapper(port=shared) as database:
            database.settings_dict["OPTIONS"]["own_session"] = "DIRECT_DATABASE_URL"
            for _ in range(2):
                with pytest.raises(SharedSession, match="DIRECT_DATABASE_URL leads to a pooler that shares"):
                    ask(database)

    def test_migrations_are_refused(self, shared):
        with wrapper(port=shared), pytest.raises(SharedSession, match="A migration changes settings"):
            call_command("migrate", database=OTHER, verbosity=0)

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
            with wrapper(port=pooler.port) as database:
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
                thread.join(20)
            proxy.forward()
        assert len(errors) == 9
        assert sum("another thread is trying" in error for error in errors) >= 4, errors

    def test_the_database_that_is_away_while_it_is_asked_is_asked_again(self, shared, monkeypatch):
        answers = iter([None, True])
        monkeypatch.setattr(base, "has_shared_sessions", lambda *_, **__: next(answers))
        with wrapper(port=shared) as database:
            assert ask(database) == 42 and not database.sessions_shared
            database.close()
            assert ask(database) == 42 and database.sessions_shared
            database.close()
            assert ask(database) == 42 and database.sessions_shared


def test_other_tests_of_this_process_are_not_pooled():
    assert ask(connection) == 42 and not connection.sessions_shared
