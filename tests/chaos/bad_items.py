"""Items that cannot be processed: streams' entries and bulk jobs. tests.chaos.run calls them like faults.

They stay in place, so the rest of the run shows that other items of the same stream or table continue.
"""

from __future__ import annotations

import datetime as dt
import json
import signal
import time
import uuid
from typing import Any

import psycopg
import redis

from tests.chaos.world import SENDERS, SPARED, World
from tests.kit.audit import Entry
from tests.kit.shop import PAYMENT, REFUNDED, payment_event

#: A standby polls every 2 s here. The rest is for a busy machine.
STANDBY_SECONDS = 30.0
RESERVED = "warehouse.stock.reserved.v1"

JOB = """
    INSERT INTO bulk_jobs (id, state, action, filter, last_id, reason, user_id, username, correlation_id,
        done_count, refused_count, refusals, error, created_at, updated_at)
    VALUES (%(id)s, 'running', %(action)s, %(filter)s, (SELECT max(id::text)::uuid FROM email_notifications),
        '', %(user)s, 'operator', '', 0, 0, '{}', '', %(at)s, %(at)s)
"""


def unusual_stream_ids(world: World) -> str:
    """Write entries whose ids are not milliseconds. Each topic's ids grow from one call to the next."""
    now = time.time_ns()
    ids = {
        PAYMENT: f"{now // 1000}-0",  # microseconds; customers' payments follow under ids that Valkey chooses
        REFUNDED: f"{now}-0",
        RESERVED: f"{2**64 - 1}-{now // 1000}",
    }
    with redis.Redis.from_url(world.shop.valkey.url) as client:
        for topic, id in ids.items():
            _write(world, client, topic, _of_no_order(topic), id=id)
            _write(world, client, topic, _of_no_order(topic))
    return ", ".join(ids.values())


def malformed_entries(world: World) -> str:
    topic = world.chance.choice([PAYMENT, REFUNDED, RESERVED])
    with redis.Redis.from_url(world.shop.valkey.url) as client:
        client.xadd(topic, {"neither key nor value": ""})  # gets one event id for all of its kind
        for change in _MALFORMED:
            fields = _of_no_order(topic)
            _write(world, client, topic, fields | {"value": change(fields["value"])})
        _write(world, client, topic, _of_no_order(topic))
    return f"{len(_MALFORMED) + 1} of {topic}"


def unknown_bulk_job(world: World) -> str:
    """Start a job of a newer release, or one that no process has known for two hours, and a correct one.

    Then only the standbys drain for a while, because a job could starve their loop.
    """
    is_old = world.chance.random() < 0.5
    _start_job(
        world,
        action="chaos.of_a_newer_release",
        at=dt.datetime.now(dt.UTC) - dt.timedelta(hours=2 * is_old),
        ends=("failed",) if is_old else ("running",),
    )
    _start_job(world, action="notifications.resend", at=dt.datetime.now(dt.UTC), ends=("done",))
    away = ("beat", "worker", "worker:2")
    for name in away:
        world.stop_gently(name)
    spared = [name for name in world.shop.processes if name in SPARED and name in SENDERS]
    for name in spared:
        world.shop.signal(name, signal.SIGSTOP)
    world.note_in_flight()
    mailbox, began = world.shop.sandbox.mailbox, time.monotonic()
    before = mailbox.stats()["accepted"]
    if not mailbox.wait_for(accepted=before + 3, timeout_seconds=STANDBY_SECONDS):
        world.wrong.append(f"no standby sent three e-mails within {STANDBY_SECONDS:g} s")
    took = time.monotonic() - began
    world.shop.start(*away)
    for name in spared:
        world.shop.signal(name, signal.SIGCONT)
    return f"{'2 hours old' if is_old else 'new'}; a standby sent the next three e-mails after {took:.1f} s"


def _start_job(world: World, *, action: str, at: dt.datetime, ends: tuple[str, ...]) -> None:
    id = str(uuid.uuid4())
    filter = json.dumps({"status": "dead_lettered"})
    values = {"id": id, "action": action, "filter": filter, "user": world.operator, "at": at}
    with psycopg.connect(world.shop.postgres.url, autocommit=True) as connection:
        connection.execute(JOB, values)
    world.jobs[id] = ends


def _of_no_order(topic: str) -> Any:
    """Return the fields of a well-formed event that becomes a dead letter, as its order does not exist."""
    fields = payment_event(str(uuid.uuid4()))
    envelope = json.loads(fields["value"]) | {"eventType": topic}
    return fields | {"value": json.dumps(envelope)}


def _write(world: World, client: redis.Redis, topic: str, fields: Any, *, id: str = "*") -> None:
    world.entries.append(Entry(topic, fields["key"], time.time()))
    client.xadd(topic, fields, id=id)


def _with(**changes: Any) -> Any:
    return lambda value: json.dumps(json.loads(value) | changes)


#: Each function makes a different malformed value of a well-formed one.
_MALFORMED: tuple[Any, ...] = (
    lambda value: value[:-1],
    lambda value: value.encode() + b"\xff\xfe",
    lambda value: f"[{value}]",
    lambda value: "[" * 200_000 + value,
    lambda value: value.replace("payment-service", "\\u0000\\ud800"),
    _with(timestamp="0001-01-01T00:00:00+14:00"),
    _with(timestamp="9999-12-31T23:59:59-14:00"),
    _with(timestamp=10**30),
    _with(data=None, metadata="x"),
    _with(version=2),
)
