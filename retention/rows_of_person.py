"""Erase a person from the rows of partitioned tables (live, detached, restored) and from cold files.

A model's `retention` rules say what is personal in a row. A person owns the rows that are addressed to them,
or in a table without addresses the rows of their orders. orders/privacy erases from tables that are not
partitioned.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from django.db import connections, transaction

from retention.cold_files import archive, restore
from retention.cold_files.table_copy import columns_of
from retention.models import DetachedPartition, Erasure
from retention.partitioned import PartitionedModel
from retention.partitions.catalogue import existing, has_table, partition_tables
from retention.partitions.locks import OWNER_DATABASE, Report, no_statement_timeout
from retention.partitions.partitions import start_of
from retention.person import Person
from runtime.personal_data import address_hash

_BATCH = 500


def erase_rows(
    *, model: PartitionedModel, person: Person, using: str, table: str = "", orders: Sequence[uuid.UUID] = ()
) -> int:
    """Erase personal values in the rows that a person owns. Lock the rows in id order.

    `table` is the model's table, or a detached or restored partition of it, which may lack columns that were
    added later. If `orders` are given, leave out the rows of other orders. Return the number of changed rows.
    Rows that were erased before do not change.
    """
    rules = model.retention
    condition, values = _owned(model, person, using)
    condition += f" AND {_escaped(rules.personal)}"
    if orders:
        condition += f" AND {connections[using].ops.quote_name(rules.owner_column)} = ANY(%s)"
        values = [*values, list(orders)]
    with no_statement_timeout(using=using) as cursor:
        return _update(cursor, model, table, using, rules.erased, condition, values)


def erase_chosen_texts(*, model: PartitionedModel, person: Person, using: str, table: str = "") -> int:
    """Erase the texts that callers chose and that have a person's address, whoever owns the row.

    Return the number of changed rows.
    """
    changed, chosen = 0, model.retention.chosen
    if chosen is None:
        return 0

    for batch in _matching(
        model, chosen.column, _escaped(chosen.has_address), person.is_named_in, using, table
    ):
        with no_statement_timeout(using=using) as cursor:
            erased = {chosen.column: chosen.erased}
            changed += _update(cursor, model, table, using, erased, "id = ANY(%s)", [batch])
    return changed


def _erase_hashed(model: PartitionedModel, hashes: Collection[str], table: str) -> int:
    """Erase the rows that are addressed to one of these keyed hashes.

    PostgreSQL cannot compute them. Compare row by row.
    """
    rules, changed = model.retention, 0

    def is_theirs(address: str) -> bool:
        return address_hash(address) in hashes

    for column in _address_columns(model, OWNER_DATABASE, table):
        for batch in _matching(model, column, f"{column} <> ''", is_theirs, OWNER_DATABASE, table):
            with no_statement_timeout(using=OWNER_DATABASE) as cursor:
                condition = f"id = ANY(%s) AND {_escaped(rules.personal)}"
                changed += _update(cursor, model, table, OWNER_DATABASE, rules.erased, condition, [batch])
    return changed


def _address_columns(model: PartitionedModel, using: str, table: str) -> list[str]:
    """Return the columns with addresses that a table has."""
    present = {column for column, _ in columns_of(table=table or model._meta.db_table, using=using)}
    return [column for column in model.retention.address_columns if column in present]


def _owned(model: PartitionedModel, person: Person, using: str) -> tuple[str, list[Any]]:
    """Return the condition of the rows of `_whole` that a person owns, and its parameters."""
    rules, quote = model.retention, connections[using].ops.quote_name
    is_of_order = f"{quote(rules.owner_column)} = ANY(%s)"
    if not rules.address_columns:
        return is_of_order, [list(person.owner_ids)]
    # An index may leave out the rows without an address.
    conditions = [
        f"({name} <> '' AND upper({name}) = upper(%s))" for name in map(quote, rules.address_columns)
    ]
    conditions.append(f"({is_of_order} AND ({_escaped(rules.unaddressed)}))")
    addresses = [person.address] * len(rules.address_columns)
    return f"({' OR '.join(conditions)})", [*addresses, list(person.owner_ids)]


def _whole(model: PartitionedModel, using: str, table: str) -> str:
    """Return the rows of a table, in SQL, with all columns of the model. An older table may lack some."""
    quote = connections[using].ops.quote_name
    name = table or model._meta.db_table
    present = {column for column, _ in columns_of(table=name, using=using)}
    added_later = [
        f"NULL::{kind} AS {quote(column)}"
        for column, kind in columns_of(table=model._meta.db_table, using=using)
        if column not in present
    ]
    return f"(SELECT {', '.join(['*', *added_later])} FROM {quote(name)}) AS whole"  # noqa: S608


def _matching(
    model: PartitionedModel,
    column: str,
    condition: str,
    matches: Callable[[str], bool],
    using: str,
    table: str,
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
                [after],
            )
            rows = cursor.fetchall()
        if ids := [id for id, text in rows if matches(text)]:
            yield ids
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
    changes = ", ".join(
        f"{quote(column)} = {_escaped(sql)}" for column, sql in erased.items() if column in present
    )
    cursor.execute(
        f"UPDATE {quote(name)} SET {changes} WHERE id = ANY(ARRAY("  # noqa: S608 - all from our own models
        f"SELECT id FROM {_whole(model, using, table)} WHERE {condition} ORDER BY id FOR UPDATE))",
        values,
    )
    return int(cursor.rowcount)


def _escaped(sql: str) -> str:
    """Escape the per cent signs of a model's own SQL in a statement that has parameters."""
    return sql.replace("%", "%%")


def side_tables(*, model: PartitionedModel, using: str) -> list[str]:
    """List partitions that are not attached, and tables that cold files were restored into."""
    tables = partition_tables(model=model, using=using)
    records = DetachedPartition.objects.using(using).filter(table=model._meta.db_table).order_by("since")
    names = [name + restore.RESTORED for name in records.values_list("name", flat=True)]
    return [table.name for table in tables if table.state != "attached"] + existing(names=names, using=using)


def erase_from_cold_file(
    *,
    model: PartitionedModel,
    record: DetachedPartition,
    report: Report,
    before: dt.datetime | None = None,
) -> int:
    """Erase from a cold file every person whose `Erasure` still lists it. Return the number of changed rows.

    While the detached table exists, erase there and write the cold file again. After its drop, restore,
    change and write the cold file. If `before` is given, do this only if one of the persons asked before that
    time: the rollover passes a month's start, and rewrites at most once a month.
    """
    waiting = erasures_waiting_for(record=record)
    late = before is None or any(erasure.requested_at < before for erasure in waiting)
    # A killed rollover may have dropped the table without recording it.
    is_table = record.dropped_at is None and has_table(name=record.name)
    if not waiting or not (late or is_table):
        return 0
    hashes = {erasure.address_hash for erasure in waiting}

    def erase(table: str) -> int:
        return _erase_hashed(model, hashes, table)

    if is_table:
        changed = erase(record.name)
        manifest = archive.find_unrecorded(record=record) or archive.write_cold_file(record=record)
        record.manifest = dataclasses.asdict(manifest)
        record.save(using=OWNER_DATABASE, update_fields=["manifest"])
        archive.delete_unrecorded(record=record)
    elif any(cold_rows(model=model, record=record, hashes=hashes)):
        changed = restore.change_cold_file(record=record, change=erase)
    else:
        changed = 0
        restore.remove_leftovers(record=record)
    end_waits(record=record, erasures=waiting)
    report("cold file rewritten", partition=record.name, rows=changed)
    return changed


def erasures_waiting_for(*, record: DetachedPartition) -> list[Erasure]:
    """Return the erasures whose persons must still be erased from a cold file."""
    return list(Erasure.objects.using(OWNER_DATABASE).filter(cold_files__contains=[record.name]))


def end_waits(*, record: DetachedPartition, erasures: Iterable[Erasure]) -> None:
    """Record that a cold file has nothing of these erased persons any more."""
    for erasure in erasures:
        with transaction.atomic(using=OWNER_DATABASE):
            fresh = Erasure.objects.using(OWNER_DATABASE).select_for_update().get(id=erasure.id)
            fresh.cold_files = [name for name in fresh.cold_files if name != record.name]
            fresh.save(using=OWNER_DATABASE, update_fields=["cold_files"])


def cold_rows(
    *, model: PartitionedModel, record: DetachedPartition, hashes: Collection[str]
) -> Iterator[dict[str, str]]:
    """Yield the rows of a cold file that are addressed to one of these keyed hashes, as text."""
    columns = model.retention.address_columns

    def is_theirs(row: Mapping[str, str]) -> bool:
        return any(address_hash(row[column]) in hashes for column in columns if row.get(column))

    return archive.find_rows(record=record, wanted=is_theirs)


def ids_about(*, model: PartitionedModel, person: Person, using: str, table: str) -> list[uuid.UUID]:
    """Return the ids of the rows of a table that a person owns, or that are about an order of theirs."""
    owned, values = _owned(model, person, using)
    quote = connections[using].ops.quote_name
    about = f"{quote(model.retention.owner_column)} = ANY(%s)"
    with no_statement_timeout(using=using) as cursor:
        cursor.execute(
            f"SELECT id FROM {_whole(model, using, table)} WHERE {owned} OR {about}",  # noqa: S608
            [*values, list(person.owner_ids)],
        )
        return [id for (id,) in cursor.fetchall()]


def table_rows(
    *, model: PartitionedModel, person: Person, using: str, table: str = ""
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table that a person owns."""
    name = connections[using].ops.quote_name(table or model._meta.db_table)
    owned, values = _owned(model, person, using)
    with no_statement_timeout(using=using) as cursor:
        theirs = f"SELECT id FROM {_whole(model, using, table)} WHERE {owned}"  # noqa: S608
        cursor.execute(f"SELECT * FROM {name} WHERE id = ANY(ARRAY({theirs})) ORDER BY id", values)  # noqa: S608
        names = [column.name for column in cursor.description or ()]
        for row in cursor.fetchall():
            yield dict(zip(names, row, strict=True))


def describe_rest(*, person: str) -> str:
    """Say how many cold files an erased person may still be in, and when they are rewritten.

    `person` is the address's keyed hash. Return an empty string if nothing is left to do.
    """
    erasure = Erasure.objects.filter(address_hash=person).first()
    if erasure is None or not erasure.cold_files:
        return ""
    due = start_of(interval="month", when=erasure.requested_at, steps=1)
    files = (
        "1 cold file has" if len(erasure.cold_files) == 1 else f"{len(erasure.cold_files)} cold files have"
    )
    return (
        f"{files} still to be read, and rewritten where they have rows of the person. The first rollover"
        f" from {due:%Y-%m-%d} on does that, or `manage.py privacy erase --now` at once."
    )
