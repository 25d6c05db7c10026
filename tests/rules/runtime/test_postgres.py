"""A database that does not answer: each wait for it ends, and what follows is an ordinary lost connection."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import (
    IntegrityError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    connection,
    transaction,
)

from runtime.database.postgres import cursor
from runtime.database.postgres.connection import patient
from tests.kit.connections import DEADLINE, OTHER, ask, database_port, make_hasty, wrapper
from tests.kit.proxy import Proxy
from tests.kit.waiting import PATIENCE
from tests.kit.words import DatabaseWrapper, Prepared

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_statement_to_a_frozen_backend_fails_at_its_deadline_and_the_next_connection_works():
    with wrapper() as database:
        pid = ask(database, "SELECT pg_backend_pid()")
        with frozen(pid):
            make_hasty(database)
            began = time.monotonic()
            with pytest.raises(
                OperationalError, match=r"did not answer within 0.5 s; the connection was closed"
            ):
                ask(database)
            # PATIENCE is far less than the minutes that TCP's own time-outs take.
            assert DEADLINE <= time.monotonic() - began < PATIENCE
            assert database.connection.closed
            database.close_if_unusable_or_obsolete()  # what Django does after each request
            assert ask(database) == 42
            assert ask(database, "SELECT pg_backend_pid()") != pid


@pytest.mark.parametrize("where", ["a statement", "a commit", "a rollback"])
def test_dropped_packets_end_a_transaction_wherever_they_begin(where):
    with Proxy(port=database_port()) as proxy, wrapper(port=proxy.port, connect_timeout=4) as database:
        ask(database, "CREATE TABLE IF NOT EXISTS dropped (id int)")
        try:
            with pytest.raises(OperationalError), transaction.atomic(using=OTHER):
                ask(database, "INSERT INTO dropped VALUES (1)")
                make_hasty(database)
                proxy.drop()
                if where == "a statement":
                    ask(database)
                elif where == "a rollback":
                    raise OperationalError("the caller's own")
            assert not database.in_atomic_block
            proxy.forward()
            database.settings_dict["OPTIONS"]["connect_timeout"] = int(PATIENCE)
            database.close()
            assert ask(database) == 42
        finally:
            ask(database, "DROP TABLE dropped")


def test_a_copy_that_stops_in_the_middle_fails_at_its_deadline():
    with Proxy(port=database_port()) as proxy, wrapper(port=proxy.port) as database:
        database.ensure_connection()
        sql = "COPY (SELECT repeat('x', 1000) FROM generate_series(1, 200000)) TO STDOUT"
        with (
            pytest.raises(psycopg.OperationalError, match="did not answer"),
            database.connection.cursor() as cursor,
            cursor.copy(sql) as copy,
        ):
            for number, _ in enumerate(copy):
                if number == 100:
                    make_hasty(database)
                    proxy.drop()


def test_a_new_connection_fails_at_its_time_out_and_others_do_not_wait_for_theirs():
    with Proxy(port=database_port()) as proxy:
        proxy.drop()
        errors: list[str] = []

        def connect() -> None:
            with wrapper(port=proxy.port, connect_timeout=4) as database:
                try:
                    ask(database)
                except OperationalError as error:
                    errors.append(str(error))

        connect()
        assert errors == ["connection timeout expired"]
        threads = [threading.Thread(target=connect) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert len(errors) == 9
        # All but the one whose turn it was; on a machine under load a few more may get theirs.
        assert sum("another thread is trying" in error for error in errors) >= 4
        proxy.forward()
        with wrapper(port=proxy.port) as database:
            assert ask(database) == 42


def test_a_backend_that_does_not_answer_its_health_check_is_replaced_unseen(fast):
    with wrapper(deadline=4 * PATIENCE) as database:
        pid = ask(database, "SELECT pg_backend_pid()")
        with frozen(pid):
            fast.health_checks()  # it is trusted for no time
            database.health_check_enabled, database.health_check_done = True, False
            began = time.monotonic()
            assert ask(database, "SELECT pg_backend_pid()") != pid
            assert time.monotonic() - began < PATIENCE


def sent_to_server(database: DatabaseWrapper, tmp_path: Path, work: Callable[[], Any]) -> str:
    """Return what libpq sent while `work` ran, health checks included."""
    path = tmp_path / "trace"
    with path.open("w") as file:
        database.connection.pgconn.trace(file.fileno())
        work()
        if not database.connection.closed:
            database.connection.pgconn.untrace()
    return "".join(line for line in path.read_text().splitlines() if "\tF\t" in line)


def test_a_connection_in_use_is_not_asked_for_its_health_before_each_request(tmp_path, fast):
    with wrapper() as database:
        ask(database)
        for _ in range(3):
            database.close_if_unusable_or_obsolete()  # as at the start and the end of a request
            assert "SELECT 1" not in sent_to_server(database, tmp_path, lambda: ask(database, "SELECT 42"))
        fast.health_checks()
        database.close_if_unusable_or_obsolete()
        assert "SELECT 1" in sent_to_server(database, tmp_path, lambda: ask(database, "SELECT 42"))


def test_a_connection_that_was_just_used_and_then_ended_is_replaced_unseen():
    with wrapper() as database:
        for _ in range(5):
            pid = ask(database, "SELECT pg_backend_pid()")
            ask(connection, "SELECT pg_terminate_backend(%s, 5000)", [pid])  # waits until it is gone
            database.close_if_unusable_or_obsolete()
            assert ask(database, "SELECT pg_backend_pid()") != pid


def test_a_migration_may_take_longer_than_the_deadline_and_leaves_it_as_it_was():
    with wrapper() as database:
        make_hasty(database)
        with database.schema_editor() as editor:
            editor.execute("SELECT pg_sleep(1.0)")
        with pytest.raises(OperationalError, match="did not answer"):
            ask(database, "SELECT pg_sleep(30)")


def test_a_patient_command_waits_longer_than_the_deadline():
    with wrapper() as database:
        make_hasty(database)
        with patient(seconds=PATIENCE):
            assert ask(database, "SELECT pg_sleep(1.0)") == ""
        with pytest.raises(OperationalError, match=r"did not answer within 0.5 s"):
            ask(database, "SELECT pg_sleep(30)")


def test_without_a_deadline_it_waits():
    with wrapper(deadline=None) as database:
        assert ask(database, "SELECT pg_sleep(1.0)") == ""


def prepared_statements(database: DatabaseWrapper) -> int:
    return int(ask(database, "SELECT count(*) FROM pg_prepared_statements"))


def test_a_statement_that_asks_for_it_is_prepared_and_no_other_is():
    with wrapper() as database:
        for number in range(12):
            assert ask(database, Prepared("SELECT %s::int + 1"), [number]) == number + 1
            assert ask(database, "SELECT %s::int + 2", [number]) == number + 2
        assert prepared_statements(database) == 2  # the second from the eighth use on


def test_a_prepared_statement_reads_a_grown_table_by_its_index():
    with wrapper() as database:
        look = Prepared("SELECT count(*) FROM grown WHERE word = %s")
        ask(database, "CREATE TEMPORARY TABLE grown (word text PRIMARY KEY)", None)
        ask(database, "ANALYZE grown", None)
        for _ in range(10):
            assert ask(database, look, ["1"]) == 0
        ask(database, "INSERT INTO grown SELECT generate_series(1, 5000)", None)
        for _ in range(22):
            assert ask(database, look, ["1"]) == 1
        newest = ask(database, "SELECT name FROM pg_prepared_statements ORDER BY prepare_time DESC LIMIT 1")
        with database.cursor() as explaining:
            explaining.execute(f"EXPLAIN EXECUTE {newest}('1')")
            plan = " ".join(line for (line,) in explaining.fetchall())
        assert "Seq Scan" not in plan


def test_no_plan_is_used_for_longer_than_a_minute_and_old_ones_are_dropped(monkeypatch):
    with wrapper() as database:
        monkeypatch.setattr(cursor, "PLAN_SECONDS", 0.0)
        for number in range(30):
            assert ask(database, Prepared("SELECT %s::int + 1"), [number]) == number + 1
        texts = "SELECT count(DISTINCT statement) FROM pg_prepared_statements"
        assert 1 < ask(database, texts) <= 2 * cursor.STATEMENTS_OF_A_TEXT


class TestWhatIsPrepared:
    LOOK = Prepared("SELECT word FROM widened WHERE word = %s")

    @pytest.fixture
    def database(self) -> Iterator[DatabaseWrapper]:
        with wrapper() as database:
            ask(connection, "CREATE TABLE widened (word varchar(20) PRIMARY KEY)")
            try:
                ask(database, self.LOOK, ["a"])
                yield database
            finally:
                ask(connection, "DROP TABLE widened")

    def test_it_outlives_a_rollback_and_a_failed_first_use(self, database):
        names = "SELECT string_agg(name, ' ' ORDER BY name) FROM pg_prepared_statements"
        save = Prepared("INSERT INTO widened VALUES (%s)")
        ask(database, save, ["a"])
        database.connection.forget_prepared()
        with pytest.raises(IntegrityError), transaction.atomic(using=OTHER):
            ask(database, save, ["a"])
        before = ask(database, names)
        assert before
        for _ in range(2):
            with pytest.raises(IntegrityError), transaction.atomic(using=OTHER):
                ask(database, save, ["a"])
            with (
                pytest.raises(IntegrityError),
                transaction.atomic(using=OTHER),
                transaction.atomic(using=OTHER),
            ):
                ask(database, save, ["a"])
        assert ask(database, names) == before

    @pytest.mark.parametrize("is_block", [False, True])
    @pytest.mark.parametrize(
        ("change", "error"),
        [
            ("ALTER TABLE widened ALTER COLUMN word TYPE text", NotSupportedError),
            ("DEALLOCATE ALL", ProgrammingError),
        ],
    )
    def test_it_is_all_forgotten_if_a_column_was_widened_or_the_session_has_lost_it(
        self, database, is_block, change, error
    ):
        other = Prepared("SELECT %s::int + 1")
        ask(database, other, ["1"])
        ask(database if change.startswith("DEALLOCATE") else connection, change)
        block = transaction.atomic(using=OTHER) if is_block else nullcontext()
        with pytest.raises(error), block:
            ask(database, self.LOOK, ["a"])
        assert prepared_statements(database) == 0
        for _ in range(2):
            assert ask(database, self.LOOK, ["a"]) is None and ask(database, other, ["1"]) == 2
        assert prepared_statements(database) == 2

    def test_its_table_may_be_made_again_in_between(self, database):
        ask(connection, "DROP TABLE widened")
        with pytest.raises(ProgrammingError):
            ask(database, self.LOOK, ["a"])
        ask(connection, "CREATE TABLE widened (number int, word varchar(20))")
        ask(connection, "INSERT INTO widened VALUES (1, 'a')")
        assert ask(database, self.LOOK, ["a"]) == "a"


def test_tcp_finds_out_when_the_other_host_is_gone():
    with wrapper() as database:
        database.ensure_connection()
        with socket.socket(fileno=os.dup(database.connection.fileno())) as ours:
            assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle, interval, count = (
                ours.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
            assert idle + interval * count <= 30
            assert 0 < ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 30_000
