"""The list of partitions for `manage.py partitions list` and the admin."""

from __future__ import annotations

from typing import Any

from retention.models import DetachedPartition
from retention.partitioned import partitioned_models
from retention.partitions.catalogue import PartitionTable, partition_tables
from retention.partitions.detach import count_unfinished
from runtime.database.clock import read_database_time


def list_partitions(*, using: str = "owner") -> list[dict[str, Any]]:
    """List every present and former partition: range, state, size, rows and the number of unfinished rows."""
    now = read_database_time(using=using)
    gone = list(DetachedPartition.objects.using(using))
    lines = []
    for model in partitioned_models():
        table_name = model._meta.db_table
        records = {record.name: record for record in gone if record.table == table_name}
        tables = {table.name: table for table in partition_tables(model=model, using=using, sizes=True)}
        # Future partitions have no row, and most partitions are such.
        begun = [name for name, table in tables.items() if table.partition.since <= now]
        unfinished = count_unfinished(model=model, names=begun, using=using)
        for name in sorted(records.keys() | tables.keys()):
            table, record = tables.get(name), records.get(name)
            manifest = (record.manifest if record else None) or {}
            bounds = table.partition if table else record
            assert bounds is not None
            over = bounds.until + model.hot() <= now
            lines.append(
                {
                    "table": table_name,
                    "partition": name,
                    "since": bounds.since.date().isoformat(),
                    "until": bounds.until.date().isoformat(),
                    "state": _state(table, record),
                    "bytes": table.bytes if table else 0,
                    "rows": table.rows if table else manifest.get("rows"),
                    "unfinished": unfinished.get(name, 0),
                    "held": bool(over and unfinished.get(name)),
                    "help": model.retention.unfinished_help,
                    "cold_file": manifest.get("file") if record and not record.deleted_at else None,
                }
            )
    return lines


def _state(table: PartitionTable | None, record: DetachedPartition | None) -> str:
    if table is not None and table.state != "detached":
        return table.state
    if record is None:
        return "detached"
    if record.deleted_at:
        return "deleted"
    if record.dropped_at and not record.archived_at:
        return "dropped"
    if record.dropped_at:
        return "archived"
    return "detached, archived" if record.archived_at else "detached"
