"""The attached partitions of tables that are partitioned by a UUIDv7, and rows that fit none of them."""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Iterable

from django.db import IntegrityError, connections, models

from runtime.database.ids import id_time

#: The end of the name of a partition's CHECK on `created_at`. retention.partitions makes it.
CREATED_CHECK = "_created"


@dataclasses.dataclass(frozen=True, slots=True)
class Partition:
    """A partition's name, and the times [since, until) of its ids."""

    name: str
    since: dt.datetime
    until: dt.datetime


def attached(*, model: type[models.Model], using: str = "default") -> list[Partition]:
    """List the attached partitions of `model`, oldest first, from the catalogue."""
    with connections[using].cursor() as cursor:
        cursor.execute(attached_statement(tables=[model._meta.db_table]))
        return parse_bounds((name, bounds) for _, name, bounds in cursor.fetchall())


def attached_statement(*, tables: Iterable[str]) -> str:
    """Return the SELECT of the attached partitions of some tables: table, name and bounds of each."""
    parents = ", ".join(f"to_regclass('{table}')" for table in tables)
    return f"""
        SELECT inhparent::regclass::text AS parent, child.relname AS name,
            pg_get_expr(child.relpartbound, child.oid) AS bounds
        FROM pg_inherits JOIN pg_class AS child ON child.oid = inhrelid
        WHERE inhparent = ANY(ARRAY[{parents}]::oid[]) AND NOT inhdetachpending
    """  # noqa: S608


def parse_bounds(rows: Iterable[tuple[str, str]]) -> list[Partition]:
    """Return partitions, oldest first, from names and bounds: FOR VALUES FROM ('…') TO ('…')."""
    ids = ((name, [id_time(uuid.UUID(id)) for id in bounds.split("'")[1::2]]) for name, bounds in rows)
    return sorted((Partition(name, *times) for name, times in ids), key=lambda partition: partition.since)


def why_misplaced(error: IntegrityError) -> str | None:
    """Return why a row fits no partition, or None if the error has another cause.

    Either a host with a wrong clock made the id, or the id is not a UUIDv7, or today's partition is missing.
    """
    diagnosis = getattr(error.__cause__, "diag", None)
    if diagnosis is None or diagnosis.sqlstate != "23514":  # check_violation
        return None
    if (diagnosis.constraint_name or "").endswith(CREATED_CHECK):
        return f"the id's time is not the database's: {diagnosis.constraint_name}"
    if diagnosis.constraint_name is None:
        return str(diagnosis.message_primary)
    return None
