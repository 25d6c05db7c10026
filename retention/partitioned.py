"""The base class of partitioned tables, with the rules of each. Retention knows no table by name."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

from django.apps import apps
from django.conf import settings
from django.db import models

Interval = Literal["month", "day"]


class ChosenText(NamedTuple):
    """A column with a text that a caller chose. It may have the address of anyone."""

    column: str
    has_address: str  # the condition, in SQL
    erased: str  # the SQL value that replaces it


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    """The rules of a partitioned table: its partitions, the rows that keep one attached, personal values.

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
    #: The condition of rows whose address is missing. They are the order's owner's.
    unaddressed: str = "false"
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


def partitioned_models() -> list[PartitionedModel]:
    return [model for model in apps.get_models() if issubclass(model, Partitioned)]
