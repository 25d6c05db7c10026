"""Read one owner's rows of a partitioned table, live and in detached partitions, for the order's timeline.

A detached partition may lack columns that were added later. Rows are mappings, and a reader must not expect
every key.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Collection
from typing import Any

from django.db import ProgrammingError, connections
from psycopg import errors

from retention.partitioned import PartitionedModel
from retention.partitions.catalogue import partition_tables
from runtime.database.ids import id_floor
from runtime.database.periods import first_id_time


def owner_rows(
    *, model: PartitionedModel, owner_id: uuid.UUID, since: dt.datetime, without: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Return an owner's rows made at `since` or later, oldest first, without the columns of `without`.

    This takes two statements. Values are those of `to_jsonb`: times are ISO 8601 texts and ids are texts.
    """
    try:
        return _owner_rows(model, owner_id, since, without)
    except ProgrammingError as error:
        if not isinstance(error.__cause__, errors.UndefinedTable):
            raise
        return _owner_rows(model, owner_id, since, without)  # a partition was dropped between the statements


def _owner_rows(
    model: PartitionedModel, owner_id: uuid.UUID, since: dt.datetime, without: Collection[str]
) -> list[dict[str, Any]]:
    connection = connections["default"]
    quote = connection.ops.quote_name
    old = [
        table.name
        for table in partition_tables(model=model, using="default")
        if table.state != "attached" and table.partition.until > first_id_time(since)
    ]
    owner = quote(model.retention.owner_column)
    select = f"SELECT to_jsonb(t) - %s::text[] FROM {{}} AS t WHERE {owner} = %s"  # noqa: S608
    # Ids contain the time. With this bound PostgreSQL plans only partitions that may have rows.
    statement = f"{select} AND id >= %s".format(quote(model._meta.db_table))
    values: list[Any] = [list(without), owner_id, id_floor(first_id_time(since))]
    for name in old:
        statement += f" UNION ALL {select}".format(quote(name))
        values += [list(without), owner_id]
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        rows = [json.loads(row) if isinstance(row, str) else row for (row,) in cursor.fetchall()]
    return sorted({row["id"]: row for row in rows}.values(), key=lambda row: str(row["id"]))
