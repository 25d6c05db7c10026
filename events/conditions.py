"""The conditions of domain events, of received ones, and of Kafka."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import NamedTuple

from events.transports import Lag
from runtime import conditions
from runtime.conditions import Condition, Query, Reading, Row, Source, positive
from runtime.database.ids import id_floor

#: The WHEREs are those of the partial indexes. `floor` prunes the partitions of future days.
_SELECT = """
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


class Events(NamedTuple):
    """The domain events that are not published, and the received ones that could not be processed."""

    unpublished: int = 0
    unpublished_seconds: float = 0.0  # since the oldest of them was written
    blocked_keys: int = 0
    dead: int = 0
    dead_inbound: int = 0


def _select(now: dt.datetime) -> str:
    return _SELECT.format(floor=id_floor(now + dt.timedelta(days=3)), most=conditions.MOST)


def _events(found: Sequence[Row], _: dt.datetime) -> Events:
    return Events(**positive(found[0]))


UNFINISHED_EVENTS: Query[Events] = Query(name="unfinished events", select=_select, read=_events)
#: Of the groups of consumers whose broker answers.
LAGS: Source[Sequence[Lag]] = Source(name="consumer lags")
#: Whether Kafka is used and does not answer.
KAFKA_AWAY: Source[bool] = Source(name="Kafka")

KAFKA_DOWN = Condition(
    code="BrokerDown",
    place=21,
    source=KAFKA_AWAY,
    readings=lambda is_away: [Reading(is_away, "kafka")],
    sentence="Kafka does not answer: start it again; e-mails are sent meanwhile",
)
DEAD_EVENTS = Condition(
    code="DeadEvents",
    place=90,
    source=UNFINISHED_EVENTS,
    readings=lambda events: [Reading(events.dead, "out")],
    sentence="{number} dead events hold others back: republish or discard them",
)
INBOUND_DEAD_LETTERS = Condition(
    code="DeadEvents",
    place=91,
    source=UNFINISHED_EVENTS,
    readings=lambda events: [Reading(events.dead_inbound, "in")],
    sentence="{number} inbound dead letters: replay or discard them",
)
RELAY_BLOCKED = Condition(
    code="RelayBlocked",
    place=130,
    source=UNFINISHED_EVENTS,
    readings=lambda events: [Reading(events.blocked_keys)],
    sentence="events of {number} orders wait behind a refused one: see Events in the admin",
)
RELAY_LAG = Condition(
    code="RelayLag",
    place=140,
    source=UNFINISHED_EVENTS,
    readings=lambda events: [Reading(events.unpublished_seconds)],
    limit=60,
    sentence="events have waited for more than a minute: check the relay and the broker",
)
CONSUMER_LAG = Condition(
    code="ConsumerLag",
    place=150,
    source=LAGS,
    readings=lambda lags: [Reading(one.seconds, one.topic) for one in lags],
    limit=60,
    sentence="messages of {subject} have waited for more than a minute: check their consumer",
)
conditions.register(KAFKA_DOWN, DEAD_EVENTS, INBOUND_DEAD_LETTERS, RELAY_BLOCKED, RELAY_LAG, CONSUMER_LAG)
