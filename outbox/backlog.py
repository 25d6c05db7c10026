"""What is unfinished, read at a bounded cost however large the backlog: for metrics and `manage.py status`.

Every count stops at `MOST` rows *read*, so that a scrape takes milliseconds in an outage, when it matters
most. Ages are seconds by the database's clock; 0.0 where there is no such row.
"""

from __future__ import annotations

import datetime as dt
import time
import uuid
from typing import NamedTuple

from django.apps import apps
from django.db import connection

from outbox.core.clock import database_now
from outbox.core.ids import id_floor
from outbox.delivery.deliverable import Deliverable

MOST = 10_000


class Rows(NamedTuple):
    """The unfinished rows of one table."""

    pending: int
    failed: int
    held: int  # the failed ones that wait for evidence of an acceptance
    due_seconds: float  # since the longest-waiting row is due
    waiting_seconds: float  # since the oldest row was written or resent, without those that are held
    held_seconds: float  # likewise of the held ones
    processing: int
    claimed_seconds: float  # since the oldest present claim
    processing_seconds: float  # since the oldest row in processing was written or resent
    dead_lettered: int

    @property
    def unfinished_seconds(self) -> float:
        """Since the oldest row that is not finished, not held and no dead letter was written or resent."""
        return max(self.waiting_seconds, self.processing_seconds)


#: A row is held if its last attempt may have been accepted and the next one is still to come.
_ROWS = """
    SELECT * FROM (
        SELECT count(*) FILTER (WHERE status = 'pending'), count(*) FILTER (WHERE status = 'failed'),
            count(*) FILTER (WHERE held),
            extract(epoch FROM statement_timestamp() - min(next_attempt_at))::float8,
            extract(epoch FROM statement_timestamp() - min(since) FILTER (WHERE NOT held))::float8,
            extract(epoch FROM statement_timestamp() - min(since) FILTER (WHERE held))::float8
        FROM (
            SELECT status, next_attempt_at, coalesce(resent_at, created_at) AS since, status = 'failed'
                AND next_attempt_at > statement_timestamp() AND errors->-1->>'outcome' = 'ambiguous' AS held
            FROM {table} WHERE status IN ('pending', 'failed') ORDER BY next_attempt_at LIMIT {most}
        ) AS row
    ) AS waiting, (
        SELECT count(*), extract(epoch FROM statement_timestamp() - min(claimed_at))::float8,
            extract(epoch FROM statement_timestamp() - min(since))::float8
        FROM (
            SELECT claimed_at, coalesce(resent_at, created_at) AS since
            FROM {table} WHERE status = 'processing' ORDER BY claimed_at LIMIT {most}
        ) AS row
    ) AS claimed, (
        SELECT count(*) FROM (
            SELECT FROM {table} WHERE status = 'dead_lettered' ORDER BY id DESC LIMIT {most}
        ) AS row
    ) AS dead
"""


def deliverables() -> list[type[Deliverable]]:
    """List the models whose rows are delivered."""
    return [model for model in apps.get_models() if issubclass(model, Deliverable)]


def rows_of(model: type[Deliverable]) -> Rows:
    """Count a table's unfinished rows, in one statement that reads at most `MOST` of each kind."""
    with connection.cursor() as cursor:
        cursor.execute(rows_statement(model))
        values = cursor.fetchone()
    return Rows(*(max(0, value or 0) for value in values))


def rows_statement(model: type[Deliverable]) -> str:
    """Return the statement of `rows_of`."""
    table = connection.ops.quote_name(model._meta.db_table)
    return _ROWS.format(table=table, most=MOST)


def due_query_seconds(model: type[Deliverable]) -> float:
    """Measure the query that finds the next hundred due rows, without claiming them."""
    rows = model.objects.due().order_by("next_attempt_at").values_list("id", flat=True)[:100]
    began = time.perf_counter()
    list(rows)
    return time.perf_counter() - began


class Events(NamedTuple):
    """The domain events that did not go out, and those that came in and could not be processed."""

    unpublished: int
    unpublished_seconds: float  # since the oldest of them was written
    blocked_keys: int
    dead: int
    dead_inbound: int


#: The conditions are those of the partial indexes.
_EVENTS = """
    SELECT * FROM (
        SELECT count(*), extract(epoch FROM statement_timestamp() - min(created_at))::float8 FROM (
            SELECT created_at FROM outbox_events
            WHERE published_at IS NULL AND dead_lettered_at IS NULL AND id < %(floor)s
            ORDER BY position LIMIT %(most)s
        ) AS event
    ) AS unpublished, (
        SELECT count(DISTINCT aggregate_id) FILTER (WHERE dead OR next_attempt_at > statement_timestamp()),
            count(*) FILTER (WHERE dead)
        FROM (
            SELECT aggregate_id, next_attempt_at, dead_lettered_at IS NOT NULL AS dead FROM outbox_events
            WHERE published_at IS NULL AND discarded_at IS NULL
                AND (dead_lettered_at IS NOT NULL OR retry_count > 0) AND id < %(floor)s
            LIMIT %(most)s
        ) AS event
    ) AS stuck, (
        SELECT count(*) FROM (
            SELECT FROM dead_events
            WHERE replay_requested_at IS NULL AND replayed_at IS NULL AND discarded_at IS NULL
            ORDER BY id DESC LIMIT %(most)s
        ) AS event
    ) AS inbound
"""


def events() -> Events:
    """Count the events that did not go out, in one statement that reads at most `MOST` of each kind."""
    with connection.cursor() as cursor:
        cursor.execute(_EVENTS, events_parameters())
        values = cursor.fetchone()
    return Events(*(max(0, value or 0) for value in values))


def events_parameters() -> dict[str, uuid.UUID | int]:
    """Return the parameters of the statement: no row is in the partitions of days to come."""
    return {"floor": id_floor(database_now() + dt.timedelta(days=3)), "most": MOST}


def heartbeat_ages() -> dict[str, float]:
    """Return the seconds since each regular job last ran; of the relays, since the newest one did."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT CASE WHEN name LIKE 'relay:%%' THEN 'relay' ELSE name END,"
            " extract(epoch FROM statement_timestamp() - max(beat_at))::float8"
            " FROM heartbeats WHERE name NOT LIKE 'reminder:%%' GROUP BY 1 ORDER BY 1"
        )
        return {name: max(0.0, age) for name, age in cursor.fetchall()}
