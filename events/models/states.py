"""The states of outgoing events and of inbound dead letters, and what a person changes in each.

A state is a condition on the row's times, written once here for Django's filters and once for SQL. Indexes,
queries, retention rules and conditions read it from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from django.db.models import Q
from django.db.models.functions import Now


class EventState(NamedTuple):
    """The same condition for Django (`rows`) and as text (`sql`)."""

    rows: Q
    sql: str


class EventTransition(NamedTuple):
    """The state that rows leave, and the new values of their columns."""

    before: EventState
    columns: Mapping[str, Any]


#: The relay must still publish the event. It becomes published, is refused and retried, or becomes dead.
UNPUBLISHED = EventState(
    Q(published_at__isnull=True, dead_lettered_at__isnull=True),
    "published_at IS NULL AND dead_lettered_at IS NULL",
)
#: Refused at least once, and neither published nor discarded.
STUCK = EventState(
    Q(published_at__isnull=True, discarded_at__isnull=True)
    & (Q(dead_lettered_at__isnull=False) | Q(retry_count__gt=0)),
    "published_at IS NULL AND discarded_at IS NULL AND (dead_lettered_at IS NOT NULL OR retry_count > 0)",
)
#: Stuck, and later events of its aggregate wait: it is dead, or its retry is not due.
BLOCKED = EventState(
    STUCK.rows & (Q(dead_lettered_at__isnull=False) | Q(next_attempt_at__gt=Now())),
    f"{STUCK.sql} AND (dead_lettered_at IS NOT NULL OR next_attempt_at > statement_timestamp())",
)
#: A dead letter that nobody has republished or discarded.
DEAD = EventState(
    STUCK.rows & Q(dead_lettered_at__isnull=False),
    "published_at IS NULL AND dead_lettered_at IS NOT NULL AND discarded_at IS NULL",
)
PUBLISHED = EventState(Q(published_at__isnull=False), "published_at IS NOT NULL")

#: The relay tries the event again at once, with all its retries.
REPUBLISH = EventTransition(STUCK, {"dead_lettered_at": None, "retry_count": 0, "next_attempt_at": Now()})
#: The relay publishes later events of the aggregate.
DISCARD = EventTransition(DEAD, {"discarded_at": Now()})

#: An inbound dead letter that is neither replayed nor discarded.
UNRESOLVED = EventState(
    Q(replayed_at__isnull=True, discarded_at__isnull=True),
    "replayed_at IS NULL AND discarded_at IS NULL",
)
#: Unresolved, and a person has to decide.
UNDECIDED = EventState(
    Q(replay_requested_at__isnull=True, replayed_at__isnull=True, discarded_at__isnull=True),
    f"replay_requested_at IS NULL AND {UNRESOLVED.sql}",
)
#: Undecided, and what is stored is exactly what came. A damaged copy must not become an order or an e-mail.
REPLAYABLE = EventState(UNDECIDED.rows & Q(is_exact=True), f"{UNDECIDED.sql} AND is_exact")
#: Unresolved, and its consumer must process it now. It becomes replayed, or undecided again.
REPLAY_REQUESTED = EventState(
    Q(replay_requested_at__isnull=False, replayed_at__isnull=True, discarded_at__isnull=True),
    f"replay_requested_at IS NOT NULL AND {UNRESOLVED.sql}",
)

REQUEST_REPLAY = EventTransition(REPLAYABLE, {"replay_requested_at": Now()})
DISCARD_LETTER = EventTransition(UNRESOLVED, {"discarded_at": Now()})
