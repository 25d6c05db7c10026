"""What a partitioned table says of itself. `outbox.retention` reads it and knows no table by name."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import ClassVar, Literal

from django.conf import settings
from django.db import models

Interval = Literal["month", "day"]


class Partitioned(models.Model):
    """What a partitioned table declares of itself, as plain data, so that upkeep knows no table by name."""

    #: A partition for each of these.
    partition_interval: ClassVar[Interval]
    #: SQL conditions of rows that may not leave the table, by what a person calls them. Each has an index.
    unfinished: ClassVar[Mapping[str, str]]
    #: What a person does about such rows.
    unfinished_help: ClassVar[str]
    #: The column that says whose a row is.
    owner_column: ClassVar[str]
    #: SQL that finds the rows with something personal in them, and SQL for the columns that erases it.
    personal: ClassVar[str]
    erased: ClassVar[Mapping[str, str]]

    class Meta:
        abstract = True

    @classmethod
    def hot(cls) -> dt.timedelta:
        """This function will say how long a partition stays attached after its last id."""
        return dt.timedelta(days=settings.HOT_DAYS[cls._meta.db_table])


Model = type[Partitioned]
