"""Delete or empty old rows of the tables that are not partitioned, `BATCH` rows at a time.

Each batch is a short transaction that skips locked rows. It waits for no other transaction and blocks others
only briefly. The next purge continues a killed one.
"""

from __future__ import annotations

import time

from django.apps import apps
from django.conf import settings
from django.db import connections, transaction

from retention.partitions.locks import OWNER_DATABASE
from runtime.database.purge_rules import PurgeRule
from runtime.models.audit import LONGEST_YEAR_DAYS

BATCH = 2000
#: The pause between two batches, in which vacuum and replicas keep up.
PAUSE_SECONDS = 0.02


def rules() -> list[tuple[str, PurgeRule]]:
    """Return tables with the rules of the models, and those of the tables that belong to libraries."""
    ours = [
        (model._meta.db_table, rule)
        for model in apps.get_models()
        for rule in getattr(model, "purge_rules", ())
    ]
    return [
        *ours,
        # Django's log, which the audit replaced: acts of a release before that.
        ("django_admin_log", PurgeRule("action_time", settings.ARCHIVE_YEARS * LONGEST_YEAR_DAYS)),
        ("django_session", PurgeRule("expire_date", 0)),
        # Wrong passwords, with names and addresses. Anybody can add rows.
        ("axes_accessattempt", PurgeRule("attempt_time", 30, most=10_000)),
    ]


def purge(*, table: str, rule: PurgeRule) -> int:
    """Delete or empty the rows of a rule and return their number."""
    name, column = (connections[OWNER_DATABASE].ops.quote_name(each) for each in (table, rule.column))
    days = rule.days() if callable(rule.days) else rule.days
    too_many = (
        f" OR {column} <= (SELECT {column} FROM {name} ORDER BY {column} DESC OFFSET {rule.most:d} LIMIT 1)"  # noqa: S608
        if rule.most is not None
        else ""
    )
    sets = ", ".join(f"{column} = {value}" for column, value in (rule.erased or {}).items())
    change = f"UPDATE {name} SET {sets}" if sets else f"DELETE FROM {name}"  # noqa: S608
    gone = 0
    while True:
        with transaction.atomic(using=OWNER_DATABASE), connections[OWNER_DATABASE].cursor() as cursor:
            cursor.execute(
                f"{change} WHERE ctid = ANY(ARRAY("  # noqa: S608 - names are ours
                f"SELECT ctid FROM {name}"
                f" WHERE ({column} < statement_timestamp() - %s * interval '1 day'{too_many})"
                f" AND NOT ({rule.keep}) ORDER BY {column} LIMIT %s FOR UPDATE SKIP LOCKED))",
                [days, BATCH],
            )
            deleted = int(cursor.rowcount)
        gone += deleted
        if deleted < BATCH:
            return gone
        time.sleep(PAUSE_SECONDS)
