"""The conditions of domain events, of received ones, and of Kafka."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import NamedTuple

from events.consuming.consumer import GROUP
from events.models.events import last_id
from events.transports import Lag
from runtime import conditions
from runtime.conditions import Alert, Condition, Counted, Measurement, Query, Row, Source, positive
from runtime.models import Pause
from runtime.telemetry.metrics import gauge

#: The WHEREs are those of the partial indexes.
_SELECT = """
    SELECT * FROM (
        SELECT count(*) AS unpublished,
            extract(epoch FROM statement_timestamp() - min(created_at))::float8 AS unpublished_seconds
        FROM (
            SELECT created_at FROM outbox_events
            WHERE published_at IS NULL AND dead_lettered_at IS NULL AND id < '{last}'
            ORDER BY position LIMIT {most}
        ) AS event
    ) AS unpublished, (
        SELECT count(DISTINCT aggregate_id) FILTER (WHERE dead OR next_attempt_at > statement_timestamp())
                AS blocked_keys,
            count(*) FILTER (WHERE dead) AS dead
        FROM (
            SELECT aggregate_id, next_attempt_at, dead_lettered_at IS NOT NULL AS dead FROM outbox_events
            WHERE published_at IS NULL AND discarded_at IS NULL
                AND (dead_lettered_at IS NOT NULL OR retry_count > 0) AND id < '{last}'
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


class Events(NamedTuple):
    """The domain events that are not published, and the received ones that could not be processed."""

    unpublished: int = 0
    unpublished_seconds: float = 0.0  # since the oldest of them was written
    blocked_keys: int = 0
    dead: int = 0
    dead_inbound: int = 0


def _select(now: dt.datetime) -> str:
    return _SELECT.format(last=last_id(now), most=conditions.MOST)


def _events(rows: Sequence[Row], _: dt.datetime) -> Events:
    return Events(**positive(rows[0]))


UNFINISHED_EVENTS: Query[Events] = Query(name="unfinished events", select=_select, read=_events)
#: Of the groups of consumers whose broker answers.
LAGS: Source[Sequence[Lag]] = Source(name="consumer lags")
#: Whether Kafka is used and does not answer.
KAFKA_AWAY: Source[bool] = Source(name="Kafka")

KAFKA_DOWN = Condition(
    code="BrokerDown",
    place=21,
    source=KAFKA_AWAY,
    measure=lambda is_away: [Measurement(is_away, "kafka")],
    sentence="Kafka does not answer",
    do="start it again; e-mails are sent meanwhile",
    alert=None,
)
DEAD_EVENTS = Condition(
    code="DeadEvents",
    place=90,
    source=UNFINISHED_EVENTS,
    measure=lambda events: [Measurement(events.dead, "out")],
    sentence="{number:dead event holds|dead events hold} back later ones of the same order",
    do="republish or discard, under Events in the admin",
    alert=Alert("P3", "10m", "Events are dead letters: yours (`out`) or those of other services (`in`)."),
)
INBOUND_DEAD_LETTERS = dataclasses.replace(
    DEAD_EVENTS,
    place=91,
    measure=lambda events: [Measurement(events.dead_inbound, "in")],
    sentence="{number:inbound dead letter|inbound dead letters}",
    do="replay or discard, under Inbound in the admin",
)
RELAY_BLOCKED = Condition(
    code="RelayBlocked",
    place=130,
    source=UNFINISHED_EVENTS,
    measure=lambda events: [Measurement(events.blocked_keys)],
    sentence="the events of {number:order wait|orders wait} behind a refused one",
    do="read the last error, under Events in the admin",
    alert=Alert("P2", "5m", "The broker refuses an event, and the order's later events wait."),
    page="events.domainevent",
)
RELAY_LAG = Condition(
    code="RelayLag",
    place=140,
    source=UNFINISHED_EVENTS,
    measure=lambda events: [
        Measurement(events.unpublished_seconds, words={"waiting": Counted(events.unpublished)})
    ],
    limit=60,
    paused_by=Pause.Part.RELAY,
    sentence="{waiting:event has|events wait, and the first has} waited for more than a minute",
    do="check the relay and the broker",
    alert=Alert("P2", "2m", "One of your events has waited for a minute."),
    page="events.domainevent",
)
CONSUMER_LAG = Condition(
    code="ConsumerLag",
    place=150,
    source=LAGS,
    measure=lambda lags: [
        Measurement(lag.seconds, lag.topic, {"waiting": Counted(lag.events)}) for lag in lags
    ],
    limit=60,
    paused_by=Pause.Part.CONSUMERS,
    sentence="{waiting:message of {subject} has|messages of {subject} wait, and the first has}"
    " waited for more than a minute",
    do="check the consumer",
    alert=Alert("P2", "1m", "Another service's event has waited at the broker for a minute."),
)
conditions.register(KAFKA_DOWN, DEAD_EVENTS, INBOUND_DEAD_LETTERS, RELAY_BLOCKED, RELAY_LAG, CONSUMER_LAG)

conditions.show(
    gauge("orderpost_relay_lag_events", "unpublished events without dead ones"),
    UNFINISHED_EVENTS,
    lambda events: events.unpublished,
)
conditions.show(
    gauge("orderpost_relay_lag_seconds", "age of the oldest unpublished event, or 0"),
    UNFINISHED_EVENTS,
    lambda events: events.unpublished_seconds,
)
conditions.show(
    gauge("orderpost_relay_blocked_keys", "keys whose events wait behind a refused one"),
    UNFINISHED_EVENTS,
    lambda events: events.blocked_keys,
)
conditions.show(
    gauge(
        "orderpost_event_dead_letters", "unresolved dead letters among events: `out` or `in`", ["direction"]
    ),
    UNFINISHED_EVENTS,
    lambda events: {"out": events.dead, "in": events.dead_inbound},
)
_LAG_LABELS = ["topic", "group"]
LAG_EVENTS = gauge(
    "orderpost_consumer_lag_events",
    "messages that `orderpost` or `orderpost-cdc` has not acknowledged",
    _LAG_LABELS,
)
LAG_SECONDS = gauge(
    "orderpost_consumer_lag_seconds",
    "age of the oldest unacknowledged message by the broker's clock, or 0",
    _LAG_LABELS,
)


def show_lags(source: Source[Sequence[Lag]], *, group: str) -> None:
    """Show as gauges how far the consumers of a group are behind."""
    conditions.show(LAG_EVENTS, source, lambda lags: {(lag.topic, group): lag.events for lag in lags})
    conditions.show(LAG_SECONDS, source, lambda lags: {(lag.topic, group): lag.seconds for lag in lags})


show_lags(LAGS, group=GROUP)
