"""Make the partitions of the next months and days."""

from __future__ import annotations

from collections.abc import Iterator

import structlog
from django.db import connections

from retention.conditions import PARTITIONS_RUN_OUT
from retention.partitioned import PartitionedModel, partitioned_models
from retention.partitions.partitions import ahead_among, make_missing
from runtime.database.clock import read_database_time
from runtime.database.partitions import attached

log = structlog.get_logger(__name__)


def ensure_all(*, using: str = "owner", ahead: int | None = None) -> Iterator[str]:
    """Make the missing partitions of every partitioned model whose table exists, and yield their names.

    Log an error if a table has too few even then.
    """
    tables = connections[using].introspection.table_names()
    for model in partitioned_models():
        if model._meta.db_table in tables:
            yield from make_missing(model=model, using=using, ahead=ahead)
            check_ahead(model=model, using=using)


def check_ahead(*, model: PartitionedModel, using: str = "default") -> None:
    """Log an error if a table has too few future partitions."""
    now = read_database_time(using=using)
    ahead = ahead_among(model=model, now=now, among=attached(model=model, using=using))
    for condition in PARTITIONS_RUN_OUT.find([ahead]):
        log.error("partitions run out", table=condition.subject, ahead=condition.number)
