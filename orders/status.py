"""What `manage.py status` shows: the state of the queues, read at a bounded cost, and what needs a person."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import redis
from django.conf import settings

from notifications.models import EmailNotification
from orders.handlers import subscribed
from outbox import backlog, database_facts
from outbox.core.clock import database_now
from outbox.core.metrics import version
from outbox.core.summed import Window
from outbox.delivery.breaker import State
from outbox.delivery.shared_state import read_breakers
from outbox.events.consumer import GROUP
from outbox.events.lag import consumer_lags
from outbox.events.transports import BrokerAway
from outbox.models import BulkJob, Pause
from outbox.retention import partitions
from outbox.retention.overdue import archives
from outbox.traffic import MINUTE, Sums, read_window

Document = dict[str, Any]
T = TypeVar("T")

MINUTES = 5


def read_status() -> Document:
    """Return everything as JSON's types; None where a broker does not answer. Ages are seconds.

    Raises the database's errors.
    """
    now = database_now()
    rates = recent_rates(now)
    jobs = backlog.heartbeat_ages()
    status: Document = {
        "version": version(),
        "at": now.isoformat(),
        "paused": _paused(now),
        "emails": _emails(),
        "rates": {"minutes": MINUTES} | _numbers(rates),
        "providers": _unless_away(lambda: _providers(rates, jobs)),
        "events": backlog.events()._asdict(),
        "consumers": _unless_away(
            lambda: [one._asdict() for one in consumer_lags(topics=sorted(subscribed()), group=GROUP)]
        ),
        "failed_jobs": BulkJob.objects.failed().count(),
        "jobs": {name: round(age, 1) for name, age in jobs.items()},
        "partitions": _partitions(now),
        "database": {"bytes": database_facts.sizes().database} | database_facts.connections()._asdict(),
    }
    return {"needs": what_needs_a_person(status)} | status


def recent_rates(now: dt.datetime) -> Sums:
    """Sum what happened in the last `MINUTES` minutes and the present one."""
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


def _paused(now: dt.datetime) -> list[Document]:
    return [
        {
            "part": row.part,
            "seconds": round((now - row.paused_at).total_seconds(), 1),
            "by": row.username,
            "reason": row.reason,
        }
        for row in Pause.objects.order_by("part")
    ]


def _emails() -> Document:
    rows = backlog.rows_of(EmailNotification)
    return rows._asdict() | {"unfinished_seconds": rows.unfinished_seconds}


def _providers(rates: Sums, jobs: Mapping[str, float]) -> list[Document]:
    now, found = read_breakers(settings.EMAIL_PROVIDERS)
    return [
        {
            "provider": name,
            "state": breaker.state(now).value,
            "forced": breaker.forced,
            "reason": "" if breaker.state(now) is State.CLOSED and not breaker.forced else breaker.reason,
            "since_seconds": round(now - breaker.changed_at, 1) if breaker.changed_at else None,
            "sent": rates.counts.get(f"sent:{name}", 0),
            "failed": rates.counts.get(f"failed:{name}", 0),
            "webhook_seconds": jobs.get(f"webhook:{name}"),
        }
        for name, breaker in found.items()
    ]


def _partitions(now: dt.datetime) -> list[Document]:
    lines = []
    for model in partitions.partitioned_models():
        attached = partitions.attached(model=model)
        found = partitions.unbroken(model=model, now=now, among=attached)
        archived = archives(model=model, now=now, attached=attached)
        table = model._meta.db_table
        lines.append(
            {
                "table": table,
                "ahead": len(found) - 1,
                "days_ahead": (found[-1].until - now).days if found else 0,
                "archive_overdue": archived.overdue,
                "archive_overdue_seconds": archived.overdue_seconds,
                "bytes": database_facts.sizes().tables.get(table, 0),
            }
        )
    return lines


HOUR, DAY = 3600.0, 86_400.0
#: Below these an operator has a week, or a few sessions, left.
DAYS_AHEAD, CONNECTIONS_LEFT = 7, 10


def what_needs_a_person(status: Document) -> list[str]:
    """Say in sentences what does not end by itself, the worst first. Pure."""
    emails, events, jobs = status["emails"], status["events"], status["jobs"]
    providers = status["providers"]
    polled = min(jobs.get("poll", HOUR), jobs.get("standby", HOUR))
    found = [
        *(
            (True, f"{one['part']} is paused by {one['by']} ({one['reason']}): see `manage.py resume`")
            for one in status["paused"]
        ),
        (providers is None, "Valkey does not answer: bring it back; meanwhile the standby sends"),
        (
            bool(providers) and all(one["state"] == "open" for one in providers or []),
            "no provider takes mail: see why below; nothing is lost",
        ),
        (
            polled > max(180.0, 3 * settings.POLL_INTERVAL),
            "nobody polls: start worker and beat, or `manage.py drain_outbox --standby`",
        ),
        (emails["dead_lettered"], f"{emails['dead_lettered']} dead letters: resend them or give them up"),
        (emails["unfinished_seconds"] > HOUR, "an e-mail is unfinished for more than an hour"),
        (
            emails["claimed_seconds"] > settings.LEASE_SECONDS + 2 * settings.POLL_INTERVAL,
            "a claim is older than its lease, and nobody takes it back",
        ),
        (events["dead"], f"{events['dead']} dead events hold others back: republish or discard them"),
        (events["dead_inbound"], f"{events['dead_inbound']} inbound dead letters: replay or discard them"),
        (
            status["failed_jobs"],
            f"{status['failed_jobs']} background jobs failed: restart or stop them in the admin, under Jobs",
        ),
        (events["unpublished_seconds"] > 60, "events wait for more than a minute: look at relay and broker"),
        *(
            (one["seconds"] > 60, f"{one['topic']} waits for more than a minute: look at the consumer")
            for one in status["consumers"] or []
        ),
        *((one["forced"], f"{one['provider']} is forced {one['forced']}") for one in providers or []),
        *(
            (one["days_ahead"] < DAYS_AHEAD, f"{one['table']} has partitions for {one['days_ahead']} days")
            for one in status["partitions"]
        ),
        *(
            (one["archive_overdue_seconds"] > 2 * DAY, f"{one['table']}: archives are overdue")
            for one in status["partitions"]
        ),
        (
            status["database"]["left"] < CONNECTIONS_LEFT,
            f"only {status['database']['left']} connections to PostgreSQL are left",
        ),
    ]
    return [sentence for wrong, sentence in found if wrong]
