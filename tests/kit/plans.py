"""How statements find their rows, on one filled database for all tests of plans.

A test that uses the fixture `filled` (tests/conftest.py) finds the rows of `_fill`, may add its own, and
leaves none.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from tests.kit.mails import make_mails_of
from tests.kit.months import dsn
from tests.kit.orders import make_orders
from tests.kit.template import shared_database
from tests.kit.words import TrafficSum, minutes, read_database_time

#: The rows of the filled database: sent e-mails, of which the newest were sent within the last hour.
SENT, SENT_NOW, DEAD, DUE, ORDERS = 20_000, 1000, 2000, 10_000, 6000
#: Hourly sums of traffic, and lines of the admin's log.
HOURS, LOGGED = 9000, 20_000

#: PostgreSQL reads a table of so many rows faster without an index.
SMALL = 1000


def rows_without_index(statement: str) -> dict[str, int]:
    """Run a statement. Return by table how many rows it read sequentially, including filtered ones."""
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + statement)
        (answer,) = cursor.fetchone()
    plan = json.loads(answer) if isinstance(answer, str) else answer
    read: dict[str, int] = {}
    for node in _nodes(plan[0]["Plan"]):
        if node["Node Type"] == "Seq Scan":
            rows = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
            read[node["Relation Name"]] = read.get(node["Relation Name"], 0) + round(rows)
    return {table: rows for table, rows in read.items() if rows > SMALL}


class Plan(NamedTuple):
    """How a statement found its rows: its indexes, the kinds of its nodes, and what it read.

    `visited` is the number of rows, without those that the index alone excluded, and without PostgreSQL's own
    tables, which it reads in another way after its autovacuum has analyzed them. `buffers` is that of pages.
    """

    indexes: set[str]
    visited: int
    buffers: int
    kinds: set[str]


def plan_of(statement: str) -> Plan:
    """Run a statement and return its plan."""
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + statement)
        (answer,) = cursor.fetchone()
    plan = json.loads(answer) if isinstance(answer, str) else answer
    nodes = list(_nodes(plan[0]["Plan"]))
    visited = sum(
        round((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
        for node in nodes
        if not node.get("Relation Name", "pg_").startswith("pg_")
    )
    indexes = {node["Index Name"] for node in nodes if "Index Name" in node}
    buffers = sum(plan[0]["Plan"][f"Shared {kind} Blocks"] for kind in ("Hit", "Read"))
    return Plan(indexes, visited, buffers, {node["Node Type"] for node in nodes})


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from _nodes(child)


def emptied(table: str) -> None:
    """Give a table new files within the transaction of a test, which then counts the pages it reads.

    Otherwise the index has the entries of rows that other tests rolled back.
    """
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {table}")


@contextmanager
def statements(*, at_most: int) -> Iterator[list[str]]:
    """Yield a list that has the statements of the block at its end. Fail if they are more."""
    texts: list[str] = []
    with CaptureQueriesContext(connection) as captured:
        yield texts
    texts += [entry["sql"] for entry in captured if not entry["sql"].startswith(("SAVEPOINT", "RELEASE"))]
    assert len(texts) <= at_most, texts


@contextmanager
def shared() -> Iterator[str]:
    """Yield the name of the filled database."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", "alone")
    name = f"filled_{run}"
    with shared_database(name, lambda: _make(name)):
        yield name


@contextmanager
def rolled_back(name: str) -> Iterator[None]:
    """Use a database as the default one within the block, and keep nothing that is written.

    One test of a parallel run uses it at a time: another's uncommitted rows would be locked, and counted.
    """
    with _default(name), transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = 0")
            cursor.execute("SELECT pg_advisory_xact_lock(1)")
            cursor.execute("SET LOCAL lock_timeout TO DEFAULT")
        yield
        transaction.set_rollback(True)


@contextmanager
def _default(name: str) -> Iterator[None]:
    before = connections["default"]
    connections["default"] = other = before.copy()
    other.settings_dict["NAME"] = name
    try:
        yield
    finally:
        other.close()
        connections["default"] = before


def _make(name: str) -> None:
    template = connection.settings_dict["TEST"].get("TEMPLATE")
    if template is None:  # a single process copies its own database, which is empty between two tests
        template = connection.settings_dict["NAME"]
        connections.close_all()
    with psycopg.connect(dsn("postgres"), autocommit=True) as other:
        other.execute(  # sessions that threads of earlier tests left would refuse the copy
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [template]
        )
        other.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    with _default(name):
        _fill()


def _fill() -> None:
    """Fill each table with one statement."""
    make_mails_of({"sent": SENT, "dead_lettered": DEAD, "pending": DUE}, sent_now=SENT_NOW)
    make_orders(ORDERS, owner="mixed")
    now = read_database_time()
    hours = {now - dt.timedelta(hours=n): minutes.Sums({"placed": 1}) for n in range(HOURS)}
    minutes.store(TrafficSum.HOUR, hours)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO audit_rows (id, at, kind, who, subject_id, act)"
            " SELECT gen_random_uuid(), now() - n * interval '60 s', 'resend', 'ann of the plans', n::text,"
            " 'Resent.' FROM generate_series(%s, 1, -1) AS n",
            [LOGGED],
        )
        cursor.execute("VACUUM ANALYZE email_notifications, orders, traffic_sums, audit_rows")
