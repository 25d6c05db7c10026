"""How statements find their rows, on one filled database for all tests of plans.

A test that uses the fixture `filled` (tests/conftest.py) finds the rows of `_fill`, may add its own, and
leaves none.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from django.db import connection, connections, transaction
from django.db.models import QuerySet
from django.test.utils import CaptureQueriesContext

from tests.kit import prepared, template
from tests.kit.mails import make_mails
from tests.kit.orders import make_orders

#: The rows of the filled database: sent e-mails, of which the newest were sent within the last hour.
SENT, SENT_NOW, DEAD, DUE, ORDERS = 40_000, 1000, 2000, 10_000, 6000

#: PostgreSQL reads a table of so many rows faster without an index.
SMALL = 1000


def rows_without_index(statement: str) -> dict[str, int]:
    """Run a statement. Return by table how many rows it read sequentially, including filtered ones."""
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + statement)
        (answer,) = cursor.fetchone()
    plan = json.loads(answer) if isinstance(answer, str) else answer
    found: dict[str, int] = {}
    for node in _nodes(plan[0]["Plan"]):
        if node["Node Type"] == "Seq Scan":
            rows = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
            found[node["Relation Name"]] = found.get(node["Relation Name"], 0) + round(rows)
    return {table: rows for table, rows in found.items() if rows > SMALL}


def rows_visited(rows: QuerySet[Any]) -> int:
    """Run a query of one table. Return how many rows its scan visited, including filtered ones."""
    (plan,) = json.loads(rows.explain(format="json", analyze=True))
    scans = [node for node in _nodes(plan["Plan"]) if "Relation Name" in node]
    return sum(round(node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) for node in scans)


class Plan(NamedTuple):
    """How a statement found its rows: its indexes, the kinds of its nodes, and what it read.

    `visited` is the number of rows, without those that the index alone excluded. `buffers` is that of pages.
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
        if "Relation Name" in node
    )
    indexes = {node["Index Name"] for node in nodes if "Index Name" in node}
    buffers = sum(plan[0]["Plan"][f"Shared {kind} Blocks"] for kind in ("Hit", "Read"))
    return Plan(indexes, visited, buffers, {node["Node Type"] for node in nodes})


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from _nodes(child)


def reads_by(index: str, statement: str) -> bool:
    """Return whether a statement finds its rows by this index, and reads no large table without one."""
    return index in plan_of(statement).indexes and not rows_without_index(statement)


@contextmanager
def statements(*, at_most: int) -> Iterator[list[str]]:
    """Yield a list that has the statements of the block at its end. Fail if they are more."""
    found: list[str] = []
    with CaptureQueriesContext(connection) as captured:
        yield found
    found += [entry["sql"] for entry in captured if not entry["sql"].startswith(("SAVEPOINT", "RELEASE"))]
    assert len(found) <= at_most, found


@contextmanager
def shared() -> Iterator[str]:
    """Yield the name of the filled database. The first process of a run makes it, the last one drops it."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", "alone")
    name = f"filled_{run}"
    made = Path(os.environ[prepared.FOLDER]) / name
    with made.with_suffix(".lock").open("w") as lock:
        while True:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                _make(name)
                made.touch()
            fcntl.flock(lock, fcntl.LOCK_SH)
            if made.exists():  # no process dropped it between the two locks
                break
        yield name
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # another process uses it
        with connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE {name}")
        made.unlink()


@contextmanager
def rolled_back(name: str) -> Iterator[None]:
    """Use a database as the default one within the block, and keep nothing that is written."""
    with _default(name), transaction.atomic():
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
    test = connection.settings_dict["TEST"]
    if test.get("MIGRATE", True):  # a single process has no template
        template.migrate(name)
    else:
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name} TEMPLATE {test['TEMPLATE']}")
    with _default(name):
        _fill()


def _fill() -> None:
    make_mails(SENT, status="sent")
    make_mails(DEAD, status="dead_lettered")
    make_mails(DUE)
    make_orders(ORDERS, owner="mixed")
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE email_notifications SET sent_at = sent_at - interval '2 hours'"
            " WHERE status = 'sent' AND id < (SELECT id FROM email_notifications"
            " WHERE status = 'sent' ORDER BY id DESC OFFSET %s LIMIT 1)",
            [SENT_NOW - 1],
        )
        for table in ("email_notifications", "orders"):
            cursor.execute(f"VACUUM FULL {table}")
            cursor.execute(f"VACUUM ANALYZE {table}")
