"""Read the existing partitions from PostgreSQL's catalogue, and their bounds from their names."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Sequence
from typing import Literal

from django.db import connections

from retention.partitioned import PartitionedModel
from retention.partitions.partitions import partition_at
from runtime.database.partitions import Partition

State = Literal["attached", "pending", "detached"]


@dataclasses.dataclass(frozen=True, slots=True)
class PartitionTable:
    """A table that is or was a partition. *Pending* means that a detach was interrupted."""

    partition: Partition
    state: State
    rows: int | None  # the estimate of the last VACUUM or ANALYZE; None before the first
    bytes: int  # with its indexes; 0 unless asked for

    @property
    def name(self) -> str:
        return self.partition.name


def partition_tables(
    *, model: PartitionedModel, using: str = "owner", sizes: bool = False
) -> list[PartitionTable]:
    """List the partitions of `model` that exist, attached or not, oldest first.

    This waits for no table's lock, since the timeline of an order needs it. If `sizes`, it opens each table.
    """
    parent = model._meta.db_table
    with connections[using].cursor() as cursor:
        cursor.execute(
            """
            SELECT c.relname, nullif(c.reltuples, -1)::bigint,
                   CASE WHEN %s THEN pg_total_relation_size(c.oid) ELSE 0 END,
                   CASE WHEN i.inhrelid IS NULL THEN 'detached'
                        WHEN i.inhdetachpending THEN 'pending' ELSE 'attached' END
            FROM pg_class AS c LEFT JOIN pg_inherits AS i
                ON i.inhrelid = c.oid AND i.inhparent = to_regclass(%s)
            WHERE c.relkind = 'r' AND c.relname ~ %s AND pg_table_is_visible(c.oid)
            """,
            [sizes, parent, f"^{parent}_p[0-9]+$"],
        )
        tables = [
            PartitionTable(partition, state, rows, size)
            for name, rows, size, state in cursor.fetchall()
            if (partition := partition_named(model=model, name=name))
        ]
    return sorted(tables, key=lambda table: table.partition.since)


def state_of(*, model: PartitionedModel, name: str) -> State | None:
    """Return the state of one partition, or None if the table does not exist."""
    tables = partition_tables(model=model)
    return next((table.state for table in tables if table.name == name), None)


def partition_named(*, model: PartitionedModel, name: str) -> Partition | None:
    """Read a partition's bounds from its name. Return None for a name that no partition has."""
    stamp = re.fullmatch(rf"{re.escape(model._meta.db_table)}_p(\d{{4}})(\d\d)(\d\d)?", name)
    if stamp is None or (stamp[3] is None) != (model.retention.interval == "month"):
        return None
    try:
        when = dt.datetime(int(stamp[1]), int(stamp[2]), int(stamp[3] or 1), tzinfo=dt.UTC)
    except ValueError:
        return None
    return partition_at(model=model, when=when)


def has_table(*, name: str, using: str = "owner") -> bool:
    return bool(existing(names=[name], using=using))


def existing(*, names: Sequence[str], using: str = "owner") -> list[str]:
    """Return the names of existing tables, in the order of `names`."""
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT name FROM unnest(%s::text[]) WITH ORDINALITY AS each (name, n)"
            " WHERE to_regclass(quote_ident(name)) IS NOT NULL ORDER BY n",
            [list(names)],
        )
        return [name for (name,) in cursor.fetchall()]
