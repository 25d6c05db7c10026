"""Delete old rows from the tables that are not partitioned, `BATCH` rows at a time.

Each batch is a short transaction that skips locked rows. It waits for no other transaction and blocks others
only briefly. The next purge continues a killed one.
"""

from __future__ import annotations

import dataclasses
import time

from django.apps import apps
from django.conf import settings
from django.db import connections, transaction

from retention.partitions.locks import OWNER_DATABASE

BATCH = 2000
#: The pause between two batches, in which vacuum and replicas keep up.
PAUSE_SECONDS = 0.02
LONGEST_YEAR_DAYS = 366


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """A `PurgeRule` of `table`, with the days of the settings."""

    table: str
    column: str
    days: float
    keep: str = "false"


def rules() -> list[Rule]:
    """Return the rules of the models, and those of the tables that belong to libraries."""
    ours = [
        Rule(model._meta.db_table, rule.column, rule.days() if callable(rule.days) else rule.days, rule.keep)
        for model in apps.get_models()
        for rule in getattr(model, "purge_rules", ())
    ]
    return [
        *ours,
        # As long as the cold files of the rows that people acted on.
        Rule("django_admin_log", "action_time", settings.ARCHIVE_YEARS * LONGEST_YEAR_DAYS),
        Rule("django_session", "expire_date", 0),
        Rule("axes_accessattempt", "attempt_time", 30),  # wrong passwords, with names and addresses
    ]


def purge(*, rule: Rule) -> int:
    """Delete the rows of a rule and return their number."""
    table, column = (connections[OWNER_DATABASE].ops.quote_name(name) for name in (rule.table, rule.column))
    gone = 0
    while True:
        with transaction.atomic(using=OWNER_DATABASE), connections[OWNER_DATABASE].cursor() as cursor:
            cursor.execute(
                f"DELETE FROM {table} WHERE ctid = ANY(ARRAY("  # noqa: S608 - names are ours
                f"SELECT ctid FROM {table} WHERE {column} < statement_timestamp() - %s * interval '1 day'"
                f" AND NOT ({rule.keep}) ORDER BY {column} LIMIT %s FOR UPDATE SKIP LOCKED))",
                [rule.days, BATCH],
            )
            deleted = int(cursor.rowcount)
        gone += deleted
        if deleted < BATCH:
            return gone
        time.sleep(PAUSE_SECONDS)
