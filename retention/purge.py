"""Delete old rows from the tables that are not partitioned, `BATCH` rows at a time.

retention.rollover calls it. Each batch is a short transaction that skips locked rows, so it waits for
no other transaction and blocks others only briefly. The next purge continues a killed one.
"""

from __future__ import annotations

import dataclasses
import time

from django.conf import settings
from django.db import connections, transaction

from retention.partitions.locks import OWNER_DATABASE

BATCH = 2000
#: The pause between two batches, so that vacuum and replicas keep up.
PAUSE_SECONDS = 0.02
TOKEN_DAYS = 30
DEAD_EVENT_DAYS = 90
JOB_DAYS = 90
LONGEST_YEAR_DAYS = 366
#: A person decided to replay the dead letter, and its consumer is paused or stopped.
_REPLAY_WAITS = "replay_requested_at IS NOT NULL AND replayed_at IS NULL AND discarded_at IS NULL"


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """Rows of `table` whose `column` is older than `days`, by the database's clock, except those to `keep`.

    The column has an index, or the table is small. `keep` is a condition in SQL.
    """

    table: str
    column: str
    days: int
    keep: str = "false"


def rules() -> list[Rule]:
    """Return the rules, with the days of the settings."""
    return [
        Rule("idempotency_keys", "created_at", settings.IDEMPOTENCY_DAYS),
        Rule("processed_events", "processed_at", settings.PROCESSED_EVENT_DAYS),
        Rule("inbound_dead_letters", "failed_at", DEAD_EVENT_DAYS, keep=_REPLAY_WAITS),
        Rule("api_tokens", "expires_at", TOKEN_DAYS),
        Rule("api_tokens", "revoked_at", TOKEN_DAYS),
        Rule("bulk_jobs", "finished_at", JOB_DAYS),  # failed ones, too
        # As long as the cold files of the rows that people acted on.
        Rule("django_admin_log", "action_time", settings.ARCHIVE_YEARS * LONGEST_YEAR_DAYS),
        Rule("django_session", "expire_date", 0),
        Rule("heartbeats", "beat_at", 7),  # of relays that were killed
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
            found = int(cursor.rowcount)
        gone += found
        if found < BATCH:
            return gone
        time.sleep(PAUSE_SECONDS)
