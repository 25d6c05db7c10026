"""Erase a person from the rows of partitioned tables (live, detached, restored) and from archives.

A model's `retention` rules say what is personal in a row. A person owns the rows that are addressed to them,
or in a table without addresses the rows of their orders. Rows quote a person if a text has a complete address
or an order id of theirs. stored_answers.py erases from tables that are not partitioned.
orders.privacy.erasure calls this module, and for archives also outbox.retention.rollover.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from django.db import connections, transaction

from outbox.database.partitioned import PartitionedModel, Quotes
from outbox.models import DetachedPartition, Erasure
from outbox.privacy import address_hash
from outbox.retention.archives import archive, restore
from outbox.retention.archives.table_copy import columns_of
from outbox.retention.partitions.catalogue import existing, partition_tables
from outbox.retention.partitions.locks import OWNER_DATABASE, Report, no_statement_timeout
from outbox.retention.people.stored_answers import like_patterns
from outbox.retention.person import Person

_BATCH = 500


def erase_rows(
    *, model: PartitionedModel, person: Person, using: str, table: str = "", orders: Sequence[uuid.UUID] = ()
) -> int:
    """Erase personal values in the rows that a person owns. Lock the rows in id order.

    `table` is the model's table, or a detached or restored partition of it, which may lack columns that were
    added later. With `orders`, leave out the rows of other orders. Return the number of changed rows. Rows
    that were erased before do not change.
    """
    rules = model.retention
    condition, values = _owned(model, person, using, table)
    condition += f" AND {_escaped(rules.personal)}"
    if orders:
        condition += f" AND {connections[using].ops.quote_name(rules.owner_column)} = ANY(%s)"
        values = [*values, list(orders)]
    with no_statement_timeout(using=using) as cursor:
        return _update(cursor, model, table, using, rules.erased, condition, values)


def erase_quotes(*, model: PartitionedModel, person: Person, using: str, table: str = "") -> int:
    """Erase the texts of a table that quote a person. Return the number of changed rows."""
    changed = 0
    for quotes in model.retention.quotes:
        for batch in _quoting_rows(model, quotes, person, using, table):
            with no_statement_timeout(using=using) as cursor:
                changed += _update(cursor, model, table, using, quotes.erased, "id = ANY(%s)", [batch])
    return changed


def _owned(model: PartitionedModel, person: Person, using: str, table: str) -> tuple[str, list[Any]]:
    """Return the condition of the rows that a person owns, and its parameters."""
    rules, quote = model.retention, connections[using].ops.quote_name
    if not rules.address_column:
        return f"{quote(rules.owner_column)} = ANY(%s)", [list(person.owner_ids)]
    if person.address:
        return f"upper({quote(rules.address_column)}) = upper(%s)", [person.address]
    # Only the hash is known. PostgreSQL cannot compute it, so compare row by row.
    batches = _matching(model, rules.address_column, "true", person.has_address, using, table)
    return "id = ANY(%s)", [[id for batch in batches for id in batch]]


def _quoting_rows(
    model: PartitionedModel, quotes: Quotes, person: Person, using: str, table: str
) -> Iterator[list[uuid.UUID]]:
    """Yield the ids of rows that quote the person. SQL preselects, and Python compares the hashes."""
    patterns = ["%@%", *like_patterns(str(owner) for owner in person.owner_ids if quotes.is_about_person)]
    column = f"{connections[using].ops.quote_name(quotes.column)}::text"
    condition = f"{_escaped(quotes.condition)} AND lower({column}) LIKE ANY(%s)"

    def named(text: str) -> bool:
        return person.is_named_in(text, orders=quotes.is_about_person)

    return _matching(model, quotes.column, condition, named, using, table, [patterns])


def _matching(
    model: PartitionedModel,
    column: str,
    condition: str,
    matches: Callable[[str], bool],
    using: str,
    table: str,
    values: Sequence[Any] = (),
) -> Iterator[list[uuid.UUID]]:
    """Yield the ids of the rows whose column matches, in id order and in batches."""
    quote = connections[using].ops.quote_name
    name = quote(table or model._meta.db_table)
    after = uuid.UUID(int=0)
    while True:
        with no_statement_timeout(using=using) as cursor:
            cursor.execute(
                f"SELECT id, {quote(column)}::text FROM {name}"  # noqa: S608 - all from our own models
                f" WHERE id > %s AND {condition} ORDER BY id LIMIT {_BATCH}",
                [after, *values],
            )
            rows = cursor.fetchall()
        if found := [id for id, text in rows if matches(text)]:
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


def side_tables(*, model: PartitionedModel, using: str) -> list[str]:
    """List partitions that are not attached, and tables that archives were restored into."""
    tables = partition_tables(model=model, using=using)
    records = DetachedPartition.objects.using(using).filter(table=model._meta.db_table).order_by("since")
    names = [name + restore.RESTORED for name in records.values_list("name", flat=True)]
    return [table.name for table in tables if table.state != "attached"] + existing(names=names, using=using)


def erase_from_archive(
    *,
    model: PartitionedModel,
    record: DetachedPartition,
    report: Report,
    before: dt.datetime | None = None,
) -> int:
    """Erase from an archive every person whose `Erasure` still lists it. Return the number of changed rows.

    While the detached table exists, erase there and write the archive again. After its drop, restore, change
    and write the archive, but with `before` only if one of the persons asked before that time. The rollover
    passes a month's start, so that this happens at most once a month.
    """
    waiting = list(Erasure.objects.using(OWNER_DATABASE).filter(archives__contains=[record.name]))
    late = before is None or any(erasure.requested_at < before for erasure in waiting)
    if not waiting or not (late or record.dropped_at is None):
        return 0
    person = Person(
        owner_ids=frozenset(uuid.UUID(id) for erasure in waiting for id in erasure.owner_ids),
        address_hashes=frozenset(erasure.address_hash for erasure in waiting),
    )

    def erase(table: str) -> int:
        rows = erase_rows(model=model, person=person, using=OWNER_DATABASE, table=table)
        return rows + erase_quotes(model=model, person=person, using=OWNER_DATABASE, table=table)

    if record.dropped_at is None:
        changed = erase(record.name)
        manifest = archive.find_unrecorded(record=record) or archive.write_archive(record=record)
        record.manifest = dataclasses.asdict(manifest)
        record.save(using=OWNER_DATABASE, update_fields=["manifest"])
        archive.delete_unrecorded(record=record)
    elif any(archived_rows(model=model, record=record, person=person)):
        changed = restore.change_archive(record=record, change=erase)
    else:
        changed = 0
    for erasure in waiting:
        with transaction.atomic(using=OWNER_DATABASE):
            fresh = Erasure.objects.using(OWNER_DATABASE).select_for_update().get(id=erasure.id)
            fresh.archives = [name for name in fresh.archives if name != record.name]
            fresh.save(using=OWNER_DATABASE, update_fields=["archives"])
    report("archive rewritten", partition=record.name, rows=changed)
    return changed


def archived_rows(
    *,
    model: PartitionedModel,
    record: DetachedPartition,
    person: Person,
    export: bool = False,
    by_index_only: bool = False,
) -> Iterable[dict[str, str]]:
    """Yield the rows of an archive that a person owns or that quote a person, as text.

    An export uses the archive's index if it has one, and with `by_index_only` reads no archive without one.
    An erasure reads the whole archive.
    """
    rules = model.retention

    def wanted(row: dict[str, str]) -> bool:
        return person.is_owner_of(rules=rules, row=row) or any(
            person.is_quoted_in(quotes=quotes, row=row)
            for quotes in rules.quotes
            if quotes.is_about_person or not export
        )

    hashes = {*map(address_hash, map(str, person.owner_ids)), *person.address_hashes} if export else None
    return archive.find_rows(record=record, wanted=wanted, hashes=hashes, by_index_only=by_index_only)


def table_rows(
    *, model: PartitionedModel, person: Person, using: str, table: str = ""
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table that a person owns, or that quote a person and are about them."""
    quote = connections[using].ops.quote_name
    quoting = [
        id
        for quotes in model.retention.quotes
        if quotes.is_about_person
        for batch in _quoting_rows(model, quotes, person, using, table)
        for id in batch
    ]
    owned, values = _owned(model, person, using, table)
    with no_statement_timeout(using=using) as cursor:
        cursor.execute(
            f"SELECT * FROM {quote(table or model._meta.db_table)}"  # noqa: S608
            f" WHERE {owned} OR id = ANY(%s) ORDER BY id",
            [*values, quoting],
        )
        names = [column.name for column in cursor.description or ()]
        for row in cursor.fetchall():
            yield dict(zip(names, row, strict=True))
