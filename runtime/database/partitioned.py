"""The base class of partitioned tables. `retention` reads the rules and knows no table by name."""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal, NamedTuple

from django.apps import apps
from django.conf import settings
from django.db import IntegrityError, connections, models

from runtime.database.ids import id_time

#: The end of the name of a partition's CHECK on `created_at`. retention.partitions makes it.
CREATED_CHECK = "_created"

Interval = Literal["month", "day"]


class ChosenText(NamedTuple):
    """A column with a text that a caller chose. It may have the address of anyone."""

    column: str
    has_address: str  # the condition, in SQL
    erased: str  # the SQL value that replaces it


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    """How a table is partitioned, which rows keep a partition attached, and which values are personal.

    Conditions and values are SQL over the table's columns.
    """

    interval: Interval
    #: Conditions of rows that may not leave the table, by a name for the operator. Each needs an index.
    unfinished: Mapping[str, str]
    #: The steps that an operator takes for such rows.
    unfinished_help: str
    #: The column with the id of the order. Unless rows have an address, the order's owner owns the row.
    owner_column: str
    #: The columns with the addresses of the persons who own the row, if rows have such. They may be empty.
    address_columns: tuple[str, ...] = ()
    #: The condition of rows with personal data.
    personal: str
    #: The SQL value that replaces each column with personal data.
    erased: Mapping[str, str]
    chosen: ChosenText | None = None


class Partitioned(models.Model):
    """A table that is partitioned by range of its UUIDv7 primary key."""

    retention: ClassVar[RetentionRules]

    class Meta:
        abstract = True

    @classmethod
    def hot(cls) -> dt.timedelta:
        """Return how long a partition stays attached after its last id."""
        return dt.timedelta(days=settings.HOT_DAYS[cls._meta.db_table])

    @classmethod
    def warm(cls) -> dt.timedelta | None:
        """Return how long a partition stays a table after its last id, until a file replaces it.

        Return None if no file replaces it.
        """
        days = settings.WARM_DAYS.get(cls._meta.db_table)
        return None if days is None else dt.timedelta(days=days)


PartitionedModel = type[Partitioned]


@dataclasses.dataclass(frozen=True, slots=True)
class Partition:
    """A partition's name, and the times [since, until) of its ids."""

    name: str
    since: dt.datetime
    until: dt.datetime


def partitioned_models() -> list[PartitionedModel]:
    return [model for model in apps.get_models() if issubclass(model, Partitioned)]


def attached(*, model: PartitionedModel, using: str = "default") -> list[Partition]:
    """List the attached partitions of `model`, oldest first, from the catalogue."""
    with connections[using].cursor() as cursor:
        cursor.execute(attached_statement(models=[model]))
        return parse_bounds((name, bounds) for _, name, bounds in cursor.fetchall())


def attached_statement(*, models: Iterable[PartitionedModel]) -> str:
    """Return the SELECT of the attached partitions of some tables: table, name and bounds of each."""
    tables = ", ".join(f"to_regclass('{model._meta.db_table}')" for model in models)
    return f"""
        SELECT inhparent::regclass::text AS parent, child.relname AS name,
            pg_get_expr(child.relpartbound, child.oid) AS bounds
        FROM pg_inherits JOIN pg_class AS child ON child.oid = inhrelid
        WHERE inhparent = ANY(ARRAY[{tables}]::oid[]) AND NOT inhdetachpending
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
