"""Find the rows that a statement reads without an index."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from django.db import connection
from django.db.models import QuerySet

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
