"""Erase a person from the rows of partitioned tables (live, detached, restored) and from archives.

A model's `retention` rules say what is personal in a row. The ids of the person's orders find their rows, and
keyed hashes of their addresses find rows that quote another service's event (`<topic>.dlt`).
stored_answers.py does the tables that are not partitioned. Called by orders.privacy and, for archives, by
outbox.retention.rollover.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from django.db import connections, transaction

from outbox.core.partitioned import PartitionedModel
from outbox.core.privacy import address_hash, find_address_hashes
from outbox.models import DetachedPartition, Erasure
from outbox.retention import archive, restore
from outbox.retention.locks import Report, no_statement_timeout
from outbox.retention.stored_answers import like_patterns
from outbox.retention.table_copy import columns_of

_BATCH = 500


@dataclasses.dataclass(frozen=True, slots=True)
class Person:
    """Persons to erase or to export: the ids of their orders, and the keyed hashes of their addresses."""

    owner_ids: frozenset[uuid.UUID]
    address_hashes: frozenset[str]

    def is_named_in(self, text: str) -> bool:
        """Tell whether a text has one of the order ids or addresses in it."""
        lower = text.lower()
        return any(str(owner) in lower for owner in self.owner_ids) or not self.address_hashes.isdisjoint(
            find_address_hashes(text)
        )


def erase_rows(
    *, model: PartitionedModel, owner_ids: Sequence[uuid.UUID], using: str, table: str = ""
) -> int:
    """Erase what is personal in the rows of these owners, locking in id order.

    `table` is the model's own unless one of its detached or restored partitions is named; that one may lack
    columns that were added later. Return the number of rows changed; rows erased before are not touched.
    """
    rules = model.retention
    quote = connections[using].ops.quote_name
    condition = f"{quote(rules.owner_column)} = ANY(%s) AND {_escaped(rules.personal)}"
    with no_statement_timeout(using=using) as cursor:
        return _update(cursor, model, table, using, rules.erased, condition, [list(owner_ids)])


def erase_quotes(*, model: PartitionedModel, person: Person, using: str, table: str = "") -> int:
    """Erase what the rows of a table quote of a person; return the number of rows changed."""
    quotes = model.retention.quotes
    if quotes is None:
        return 0
    changed = 0
    for batch in _quoting_rows(model, person, using, table):
        with no_statement_timeout(using=using) as cursor:
            changed += _update(cursor, model, table, using, quotes.erased, "id = ANY(%s)", [batch])
    return changed


def _quoting_rows(
    model: PartitionedModel, person: Person, using: str, table: str
) -> Iterator[list[uuid.UUID]]:
    """Yield the ids of rows that quote the person. SQL preselects, Python compares the hashes."""
    quotes = model.retention.quotes
    assert quotes is not None
    quote = connections[using].ops.quote_name
    name, column = quote(table or model._meta.db_table), f"{quote(quotes.column)}::text"
    patterns = ["%@%", *like_patterns(str(owner) for owner in person.owner_ids)]
    after = uuid.UUID(int=0)
    while True:
        with no_statement_timeout(using=using) as cursor:
            cursor.execute(
                f"SELECT id, {column} FROM {name} WHERE id > %s AND {_escaped(quotes.condition)}"  # noqa: S608
                f" AND lower({column}) LIKE ANY(%s) ORDER BY id LIMIT {_BATCH}",
                [after, patterns],
            )
            rows = cursor.fetchall()
        if found := [id for id, text in rows if person.is_named_in(text)]:
            yield found
        if len(rows) < _BATCH:
            return
        after = rows[-1][0]


def _update(
    cursor: Any,
    model: PartitionedModel,
    table: str,
    using: str,
    erased: Mapping[str, str],
    condition: str,
    values: list[Any],
) -> int:
    quote = connections[using].ops.quote_name
    name = table or model._meta.db_table
    present = {column for column, _ in columns_of(table=name, using=using)}
    added_later = [
        f"NULL::{kind} AS {quote(column)}"
        for column, kind in columns_of(table=model._meta.db_table, using=using)
        if column not in present
    ]
    rows = f"(SELECT {', '.join(['*', *added_later])} FROM {quote(name)}) AS whole"  # noqa: S608
    changes = ", ".join(
        f"{quote(column)} = {_escaped(sql)}" for column, sql in erased.items() if column in present
    )
    cursor.execute(
        f"UPDATE {quote(name)} SET {changes} WHERE id = ANY(ARRAY("  # noqa: S608 - all from our own models
        f"SELECT id FROM {rows} WHERE {condition} ORDER BY id FOR UPDATE))",
        values,
    )
    return int(cursor.rowcount)


def _escaped(sql: str) -> str:
    """Escape the per cent signs of a model's own SQL in a statement that has parameters."""
    return sql.replace("%", "%%")


def rewrite_archive(
    *,
    model: PartitionedModel,
    record: DetachedPartition,
    using: str = "owner",
    report: Report,
    before: dt.datetime | None = None,
) -> int:
    """Erase from an archive all persons who are still to be erased from it; return the rows changed.

    While the detached table exists, the archive is written anew from it. A later archive is restored, changed
    and written anew: without `before` always, else only if one of the persons asked before that time. The
    rollover passes a month's start, so that this happens at most once a month.
    """
    waiting = list(Erasure.objects.using(using).filter(archives__contains=[record.name]))
    late = before is None or any(erasure.requested_at < before for erasure in waiting)
    if not waiting or not (late or record.dropped_at is None):
        return 0
    person = Person(
        owner_ids=frozenset(uuid.UUID(id) for erasure in waiting for id in erasure.owner_ids),
        address_hashes=frozenset(erasure.address_hash for erasure in waiting),
    )

    def erase(table: str) -> int:
        rows = erase_rows(model=model, owner_ids=list(person.owner_ids), using=using, table=table)
        return rows + erase_quotes(model=model, person=person, using=using, table=table)

    if record.dropped_at is None:
        changed = erase(record.name)
        manifest = archive.adopt(record=record, using=using) or archive.write(record=record, using=using)
        record.manifest = dataclasses.asdict(manifest)
        record.save(using=using, update_fields=["manifest"])
        archive.sweep(record=record)
    elif any(archived_rows(model=model, record=record, person=person)):
        changed = restore.rewrite(record=record, using=using, change=erase)
    else:
        changed = 0
    for erasure in waiting:
        with transaction.atomic(using=using):
            fresh = Erasure.objects.using(using).select_for_update().get(id=erasure.id)
            fresh.archives = [name for name in fresh.archives if name != record.name]
            fresh.save(using=using, update_fields=["archives"])
    report("archive rewritten", partition=record.name, rows=changed)
    return changed


def archived_rows(
    *, model: PartitionedModel, record: DetachedPartition, person: Person, indexed: bool = False
) -> Iterable[dict[str, str]]:
    """Yield the rows of an archive that are a person's or quote a person, as text.

    With `indexed` by the archive's index if it has one. An erasure reads the archive itself from end to end.
    """
    owners = {str(owner) for owner in person.owner_ids}
    owner_column, quotes = model.retention.owner_column, model.retention.quotes

    def wanted(row: dict[str, str]) -> bool:
        return row[owner_column] in owners or (quotes is not None and person.is_named_in(row[quotes.column]))

    hashes = {*map(address_hash, owners), *person.address_hashes} if indexed else None
    return archive.find(record=record, wanted=wanted, hashes=hashes)


def table_rows(
    *, model: PartitionedModel, person: Person, using: str, table: str = ""
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table that are a person's or quote a person."""
    quote = connections[using].ops.quote_name
    quoting: list[uuid.UUID] = []
    if model.retention.quotes is not None:
        quoting = [id for batch in _quoting_rows(model, person, using, table) for id in batch]
    with no_statement_timeout(using=using) as cursor:
        cursor.execute(
            f"SELECT * FROM {quote(table or model._meta.db_table)}"  # noqa: S608
            f" WHERE {quote(model.retention.owner_column)} = ANY(%s) OR id = ANY(%s) ORDER BY id",
            [list(person.owner_ids), quoting],
        )
        names = [column.name for column in cursor.description or ()]
        for row in cursor.fetchall():
            yield dict(zip(names, row, strict=True))
