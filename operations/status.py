"""Read the state of the queues and what needs a person. The cost is bounded."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import redis
from django.conf import settings

from events.conditions import KAFKA_AWAY, LAGS, UNFINISHED_EVENTS
from events.consuming.consumer import GROUP
from events.transports import BrokerAway, consumer_lags
from notifications.changes.evidence import count_unmatched
from notifications.conditions import UNFINISHED_EMAILS
from operations.conditions import CONNECTIONS, FAILED_JOBS
from orders.conditions import STUCK_ORDERS
from orders.subscriptions import subscribed
from outbox import cdc
from outbox.conditions import CDC_LAGS, PROVIDERS, VALKEY, Providers, read_valkey
from retention.conditions import PARTITIONS
from retention.partitions.partitions import PartitionsAhead
from runtime.charts.sums import MINUTE, Sums, Window, read_window
from runtime.conditions import DAY, HEARTBEATS, PAUSES, PROCESSES, decide, read_facts
from runtime.database import server
from runtime.database.clock import read_database_time
from runtime.database.parts import has_trigrams
from runtime.telemetry.release import version

Document = dict[str, Any]
T = TypeVar("T")

MINUTES = 5


def read_status() -> Document:
    """Return the status as JSON values. Ages are in seconds.

    `providers` is None if Valkey does not answer, and `consumers` if the broker of events does not. Raise
    the database's errors.
    """
    now = read_database_time()
    rates = recent_rates(now)
    providers, trouble = read_valkey()
    facts = read_facts(now=now)
    lags = _unless_away(lambda: consumer_lags(topics=sorted(subscribed()), group=GROUP))
    beats = facts[HEARTBEATS]
    of_cdc = _unless_away(cdc.read_cdc_lags) if cdc.is_used(beats) else []
    waiting = [*(lags or ()), *(of_cdc or ())]
    is_kafka_away = (settings.EVENT_TRANSPORT == "kafka" and lags is None) or of_cdc is None
    facts = facts.adding(PROVIDERS, providers).adding(VALKEY, trouble).adding(KAFKA_AWAY, is_kafka_away)
    facts = facts.adding(LAGS, lags or ()).adding(CDC_LAGS, of_cdc or ())
    needs = decide(facts)
    rows, sizes = facts[UNFINISHED_EMAILS], server.sizes()
    return {
        "needs": [condition.sentence for condition in needs],
        "alerts": [condition.code for condition in needs],
        "version": version(),
        "at": now.isoformat(),
        "paused": list(facts[PAUSES]),
        "stuck_orders": {state: stuck._asdict() for state, stuck in facts[STUCK_ORDERS].items()},
        "emails": rows._asdict() | {"unfinished_seconds": rows.unfinished_seconds},
        "rates": {"minutes": MINUTES} | _numbers(rates),
        "providers": None if providers is None else _providers(providers, rates, beats),
        "events": facts[UNFINISHED_EVENTS]._asdict(),
        "consumers": None if lags is None else [lag._asdict() for lag in waiting],
        "failed_jobs": facts[FAILED_JOBS],
        "processes": list(facts[PROCESSES]),
        "jobs": {name: round(age, 1) for name, age in beats.items()},
        "partitions": [_partitions(table, sizes.tables) for table in facts[PARTITIONS]],
        "database": {"bytes": sizes.database, "finds_parts": has_trigrams()} | facts[CONNECTIONS]._asdict(),
    }


def recent_rates(now: dt.datetime) -> Sums:
    """Sum the traffic of the last `MINUTES` minutes and of the current minute."""
    until = now.replace(second=0, microsecond=0) + MINUTE
    window = Window(since=until - (MINUTES + 1) * MINUTE, until=until, span=60)
    return Sums.total(read_window(window).values())


def _numbers(rates: Sums) -> Document:
    return {
        "orders_placed": rates.count("placed"),
        "emails_sent": sum(n for series, n in rates.counts.items() if series.startswith("sent:")),
        "delivered": rates.count("delivered"),
        "bounced": rates.count("bounced"),
        "failed_attempts": rates.count("failed"),
        "commit_to_sent_p50": rates.quantile("sent", share=0.5),
        "commit_to_sent_p99": rates.quantile("sent", share=0.99),
    }


def _unless_away(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except (redis.RedisError, BrokerAway):
        return None


def _providers(providers: Providers, rates: Sums, jobs: Mapping[str, float]) -> list[Document]:
    unmatched = count_unmatched()
    return [
        {
            "provider": name,
            "state": view.state.value,
            "words": view.words,
            "forced": view.breaker.forced,
            "reason": "" if view.words == "working" else view.breaker.reason,
            "since_seconds": None if view.changed_ago_seconds is None else round(view.changed_ago_seconds, 1),
            "sent": rates.counts.get(f"sent:{name}", 0),
            "failed": rates.counts.get(f"failed:{name}", 0),
            "webhook_seconds": jobs.get(f"webhook:{name}"),
            "unmatched": unmatched.get(name, 0),
        }
        for name, view in providers.items()
    ]


def _partitions(table: PartitionsAhead, sizes: Mapping[str, int]) -> Document:
    return {
        "table": table.table,
        "ahead": table.partitions_ahead,
        "days_ahead": int(table.partitions_ahead_seconds // DAY),
        "archive_overdue": table.archive_overdue,
        "archive_overdue_seconds": table.archive_overdue_seconds,
        "bytes": sizes.get(table.table, 0),
    }
