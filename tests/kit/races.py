"""Threads that start together, each with its own database connection, and tables that refuse rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar
from unittest import mock

from django.db import connection, connections

from runtime.database import save
from tests.kit.waiting import PATIENCE, until

T = TypeVar("T")


def together(count: int, work: Callable[[int], T]) -> list[T]:
    """Run `work(0)` … `work(count - 1)` at the same moment. Return the results, or raise an error of one.

    They wait for their turn at a row as long as it takes: a busy machine would refuse some of them.
    """
    barrier = threading.Barrier(count)

    def run(number: int) -> T:
        try:
            barrier.wait(PATIENCE)
            return work(number)
        finally:
            connections.close_all()

    with mock.patch.object(save, "TURN_SECONDS", PATIENCE), ThreadPoolExecutor(count) as pool:
        return [future.result(PATIENCE) for future in [pool.submit(run, number) for number in range(count)]]


@contextmanager
def broken(table: str, how: str = "RAISE EXCEPTION 'broken'") -> Iterator[None]:
    """Make each insert into a table and each update of it fail, so that a statement fails at this part.

    `how` is a statement of PL/pgSQL that fails.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION break_it() RETURNS trigger LANGUAGE plpgsql"
            f" AS $$ BEGIN {how}; RETURN NEW; END $$"
        )
        cursor.execute(
            f"CREATE TRIGGER break_it BEFORE INSERT OR UPDATE ON {table}"
            " FOR EACH ROW EXECUTE FUNCTION break_it()"
        )
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION break_it() CASCADE")


def wait_until_somebody_waits(*, count: int = 1) -> None:
    """Wait until `count` other sessions of this database wait for a lock."""

    def somebody_waits() -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_clear_snapshot()")
            cursor.execute(
                "SELECT count(*) >= %s FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event_type = 'Lock'",
                [count],
            )
            return bool(cursor.fetchone()[0])

    until(somebody_waits, f"{count} sessions wait")
