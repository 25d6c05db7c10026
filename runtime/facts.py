"""Read the numbers for metrics, `manage.py status` and `runtime.conditions` in one statement.

Every count stops after *reading* `MOST` rows, so that it takes milliseconds even in an outage. Ages are
seconds by the database's clock, or 0.0 without such a row.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from django.db import connection

from retention.partitions import partitions
from runtime.conditions import Connections, Events, Facts, Rows, Stock, Stuck
from runtime.database import partitioned
from runtime.database.ids import id_floor
from runtime.database.server import SESSIONS

MOST = 10_000

EMAILS = "email_notifications"
#: A row is held if a provider may have accepted its last attempt and the next attempt is not due.
_ROWS = """
    SELECT * FROM (
        SELECT count(*) FILTER (WHERE status = 'pending') AS pending,
            count(*) FILTER (WHERE status = 'failed') AS failed, count(*) FILTER (WHERE held) AS held,
            extract(epoch FROM statement_timestamp() - min(next_attempt_at))::float8 AS due_seconds,
            extract(epoch FROM statement_timestamp() - min(since) FILTER (WHERE NOT held))::float8
                AS waiting_seconds
        FROM (
            SELECT status, next_attempt_at, coalesce(resent_at, created_at) AS since, status = 'failed'
                AND next_attempt_at > statement_timestamp() AND errors->-1->>'outcome' = 'ambiguous' AS held
            FROM email_notifications WHERE status IN ('pending', 'failed')
            ORDER BY next_attempt_at LIMIT {most}
        ) AS row
    ) AS waiting, (
        SELECT count(*) AS processing,
            extract(epoch FROM statement_timestamp() - min(claimed_at))::float8 AS claimed_seconds,
            extract(epoch FROM statement_timestamp() - min(since))::float8 AS processing_seconds
        FROM (
            SELECT claimed_at, coalesce(resent_at, created_at) AS since
            FROM email_notifications WHERE status = 'processing' ORDER BY claimed_at LIMIT {most}
        ) AS row
    ) AS claimed, (
        SELECT count(*) AS dead_lettered FROM (
            SELECT FROM email_notifications WHERE status = 'dead_lettered' ORDER BY id DESC LIMIT {most}
        ) AS row
    ) AS dead
"""
#: The conditions are those of the partial indexes. `floor` prunes the partitions of future days.
_EVENTS = """
    SELECT * FROM (
        SELECT count(*) AS unpublished,
            extract(epoch FROM statement_timestamp() - min(created_at))::float8 AS unpublished_seconds
        FROM (
            SELECT created_at FROM outbox_events
            WHERE published_at IS NULL AND dead_lettered_at IS NULL AND id < '{floor}'
            ORDER BY position LIMIT {most}
        ) AS event
    ) AS unpublished, (
        SELECT count(DISTINCT aggregate_id) FILTER (WHERE dead OR next_attempt_at > statement_timestamp())
                AS blocked_keys,
            count(*) FILTER (WHERE dead) AS dead
        FROM (
            SELECT aggregate_id, next_attempt_at, dead_lettered_at IS NOT NULL AS dead FROM outbox_events
            WHERE published_at IS NULL AND discarded_at IS NULL
                AND (dead_lettered_at IS NOT NULL OR retry_count > 0) AND id < '{floor}'
            LIMIT {most}
        ) AS event
    ) AS stuck, (
        SELECT count(*) AS dead_inbound FROM (
            SELECT FROM inbound_dead_letters
            WHERE replay_requested_at IS NULL AND replayed_at IS NULL AND discarded_at IS NULL
            ORDER BY id DESC LIMIT {most}
        ) AS event
    ) AS inbound
"""
#: All relays count as one, with the newest heartbeat.
_BEATS = """
    SELECT CASE WHEN name LIKE 'relay:%' THEN 'relay' ELSE name END AS name,
        extract(epoch FROM statement_timestamp() - max(beat_at))::float8 AS age
    FROM heartbeats GROUP BY 1 ORDER BY 1
"""
_PAUSED = """
    SELECT part, round(extract(epoch FROM statement_timestamp() - paused_at), 1)::float8 AS seconds,
        username AS by, reason
    FROM pauses ORDER BY part
"""
_FAILED_JOBS = "SELECT count(*) AS number FROM bulk_jobs WHERE state = 'failed'"
#: The ends of the detached partitions that are not archived.
_UNARCHIVED = """
    SELECT "table", array_agg(until) AS ends FROM detached_partitions WHERE archived_at IS NULL GROUP BY 1
"""


#: Returns the SELECT of stuck orders, as `orders.conditions` describes it. The app that has orders sets it.
_stuck: Callable[[], str] = lambda: "SELECT WHERE false"  # noqa: E731


def register_stuck(statement: Callable[[], str]) -> None:
    global _stuck
    _stuck = statement


def read_facts(*, now: dt.datetime) -> Facts:
    """Read all facts that PostgreSQL has."""
    paused, beats, events, jobs, holding, stuck, sessions, attached, unarchived, emails = _read_together(
        _PAUSED,
        _BEATS,
        _EVENTS.format(floor=id_floor(now + dt.timedelta(days=3)), most=MOST),
        _FAILED_JOBS,
        _holding(now),
        _stuck(),
        SESSIONS,
        partitioned.attached_statement(models=partitioned.partitioned_models()),
        _UNARCHIVED,
        _ROWS.format(most=MOST),
    )
    return Facts(
        paused=paused,
        jobs={beat["name"]: max(0.0, beat["age"]) for beat in beats},
        rows={EMAILS: Rows(**_positive(emails[0]))},
        events=Events(**_positive(events[0])),
        failed_jobs=jobs[0]["number"],
        holding=holding[0]["number"],
        stuck={one["state"]: Stuck(one["orders"], one["oldest_seconds"]) for one in stuck},
        stocks=list(_stocks(now, attached, {one["table"]: one["ends"] for one in unarchived})),
        connections=_connections(sessions),
    )


def _read_together(*statements: str) -> list[list[dict[str, Any]]]:
    """Run several SELECTs as one statement, and return the rows of each."""
    columns = (f"(SELECT json_agg(found) FROM ({one}) AS found)" for one in statements)  # noqa: S608
    with connection.cursor() as cursor:
        cursor.execute("SELECT " + ", ".join(columns))
        return [rows or [] for rows in cursor.fetchone()]


def _positive(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: max(0, value or 0) for name, value in row.items()}


def _holding(now: dt.datetime) -> str:
    """Return the SELECT that counts the unfinished rows of partitions past their hot days."""
    parts = []
    for model in partitioned.partitioned_models():
        rules = model.retention
        floor = id_floor(partitions.start_of(interval=rules.interval, when=now - model.hot()))
        for condition in rules.unfinished.values():
            parts.append(f"(SELECT 1 FROM {model._meta.db_table} WHERE id < '{floor}' AND {condition})")  # noqa: S608
    return f"SELECT count(*) AS number FROM ({' UNION ALL '.join(parts)} LIMIT {MOST}) AS row"  # noqa: S608


def _stocks(
    now: dt.datetime, attached: Sequence[Mapping[str, str]], unarchived: Mapping[str, Sequence[str]]
) -> Iterable[Stock]:
    for model in partitioned.partitioned_models():
        table = model._meta.db_table
        among = partitioned.parse_bounds(
            (one["name"], one["bounds"]) for one in attached if one["parent"] == table
        )
        overdue = []
        if (warm := model.warm()) is not None:
            ends = [dt.datetime.fromisoformat(until) for until in unarchived.get(table, ())]
            ages = [(now - until - warm).total_seconds() for until in (*ends, *(one.until for one in among))]
            overdue = [age for age in ages if age >= 0]
        yield partitions.stock_of(model=model, now=now, among=among)._replace(
            archive_overdue=len(overdue),
            archive_overdue_seconds=max(overdue, default=0.0),
        )


def _connections(sessions: Sequence[Mapping[str, Any]]) -> Connections:
    states = dict.fromkeys(("active", "idle", "idle in transaction", "other"), 0)
    states |= {one["state"]: one["number"] for one in sessions}
    oldest = max(one["oldest"] or 0.0 for one in sessions)  # never empty, because this session is included
    return Connections(states, max(0, sessions[0]["most"] - sum(states.values())), max(0.0, oldest))
