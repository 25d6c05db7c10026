"""A plan for all values reads the rows of a claim, a settlement and a relay by index.

PostgreSQL decides by costs whether it uses such a plan, so these tests force it to.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
import pytest
from django.db import connection

from runtime.database.postgres import cursor as prepared
from tests.kit.months import fill
from tests.kit.plans import DUE, SENT, SMALL, Plan, plan_of
from tests.kit.words import (
    SHARDS,
    DomainEvent,
    EmailNotification,
    Outcome,
    Verdict,
    attached,
    claim,
    claim_untried,
    read_database_time,
    settle,
)

pytestmark = pytest.mark.django_db(transaction=True)
ACCEPTED = Outcome(Verdict.ACCEPTED, "test", "m")
CLAIMS: dict[str, Callable[[], object]] = {
    "of all": partial(claim, limit=40, fresh=10),
    "with a lookback": partial(claim, limit=40, fresh=10, lookback_seconds=60.0),
    "of an untried row": claim_untried,
}


def plan_without_values(work: Callable[[], object], mark: str) -> Plan:
    """Do some work, and run its prepared statement with `mark` again by the plan for any values.

    Call it in a transaction, because until its end PostgreSQL makes no other plans.
    """
    sent: list[tuple[str, Any]] = []

    def remember(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if mark in sql:
            sent.append((sql, params))
        return execute(sql, params, many, context)

    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        with connection.execute_wrapper(remember):
            work()
        ((sql, params),) = sent
        cursor.execute(
            "SELECT name FROM pg_prepared_statements WHERE strpos(statement, %s) > 0"
            " ORDER BY prepare_time DESC LIMIT 1",
            [mark],
        )
        (name,) = cursor.fetchone()
    if isinstance(params, dict):
        params = [params[key] for key in dict.fromkeys(re.findall(r"%\((\w+)\)s", sql))]
    values = ", ".join(psycopg.ClientCursor(connection.connection).mogrify("%s", [param]) for param in params)
    return plan_of(f"EXECUTE {name}({values})")


def due_indexes(plan: Plan) -> set[str]:
    return {name for name in plan.indexes if name.endswith("next_attempt_at_idx")}


def this_month() -> str:
    now = dt.datetime.now(dt.UTC)
    (partition,) = [
        partition
        for partition in attached(model=EmailNotification)
        if partition.since <= now < partition.until
    ]
    return partition.name


@pytest.mark.parametrize("kind", CLAIMS)
def test_a_claim_reads_a_long_backlog_by_the_index_of_due_rows(filled, kind):
    plan = plan_without_values(CLAIMS[kind], "UPDATE")
    assert f"{this_month()}_next_attempt_at_idx" in due_indexes(plan)
    assert plan.visited <= 400 < DUE


@pytest.mark.parametrize("kind", CLAIMS)
def test_a_claim_reads_a_month_without_due_rows_by_their_index(filled, kind):
    EmailNotification.objects.due().delete()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE email_notifications")
    plan = plan_without_values(CLAIMS[kind], "UPDATE")
    assert f"{this_month()}_next_attempt_at_idx" in due_indexes(plan)
    assert plan.visited == 0 < SENT


@pytest.mark.parametrize("kind", CLAIMS)
def test_a_claim_reads_a_month_by_index_soon_after_its_partition_was_empty(filled, kind, monkeypatch):
    EmailNotification.objects.due().delete()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE email_notifications")
    monkeypatch.setattr(prepared, "PLAN_SECONDS", math.inf)
    assert plan_without_values(CLAIMS[kind], "UPDATE").visited == 0
    now = dt.datetime.now(dt.UTC)
    (following,) = [partition for partition in attached(model=EmailNotification) if partition.since > now][:1]
    fill(following, SMALL + 200)  # one statement could not insert many more
    monkeypatch.setattr(prepared, "PLAN_SECONDS", 0.0)
    plan = plan_without_values(CLAIMS[kind], "UPDATE")
    assert plan.visited < SMALL, plan


@pytest.mark.parametrize("mark", ["FOR UPDATE", "jsonb_to_recordset"])
def test_a_settlement_reads_its_rows_by_their_ids(filled, mark):
    settling = partial(settle, [(row, ACCEPTED) for row in claim(limit=40)])
    plan = plan_without_values(settling, mark)
    assert f"{this_month()}_pkey" in plan.indexes
    assert plan.visited <= 4 * 40, plan


def write_events(*, published: int, due: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, version, sequence,
                payload, metadata, shard, retry_count, last_error, published_at)
            SELECT (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, '0') || '7'
                    || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 4, 15))::uuid,
                'test', gen_random_uuid(), 'test.v1', 1, 1, '{}', '{}', n %% 64, 0, '',
                CASE WHEN n <= %(published)s THEN now() END
            FROM generate_series(1, %(published)s + %(due)s) AS n
            """,
            {"published": published, "due": due},
        )
        cursor.execute("ANALYZE outbox_events")


def today() -> str:
    now = dt.datetime.now(dt.UTC)
    (partition,) = [
        partition for partition in attached(model=DomainEvent) if partition.since <= now < partition.until
    ]
    return partition.name


@pytest.mark.parametrize("waiting", [0, 2000])
def test_a_relay_reads_by_its_indexes_with_and_without_a_backlog(filled, waiting):
    write_events(published=4 * SMALL, due=waiting)
    events, every = DomainEvent.objects.all(), {"shards": range(SHARDS), "now": read_database_time()}
    blocking = plan_without_values(partial(events.blocking, **every), "DISTINCT")
    assert f"{today()}_shard_idx" in blocking.indexes and blocking.visited == 0
    values = {**every, "since": 0, "without": [], "held": [], "limit": 100}
    due = plan_without_values(partial(events.due, **values), "ORDER BY position")
    assert f"{today()}_position_idx" in due.indexes
    assert due.visited == min(waiting, 100)


def test_a_relay_marks_events_by_their_ids_on_their_own_days(filled):
    write_events(published=4 * SMALL, due=20)
    ids = list(DomainEvent.objects.unpublished().values_list("id", flat=True))
    plan = plan_without_values(partial(DomainEvent.objects.mark_published, ids=ids), "published_at =")
    assert plan.visited == len(ids)
    assert plan.indexes == {f"{today()}_pkey"} and "Seq Scan" not in plan.kinds  # of other days
