"""Wake the drain of this process when the write-ahead log shows a due row. Run by `manage.py follow_wal`.

It needs PostgreSQL and a provider, but no Redis, worker or beat. Other drains may run at the same time,
because a row that one of them sends is no longer due.
"""

from __future__ import annotations

import math

from django.conf import settings
from django.db import connections

from notifications.delivery.beats import Beats
from notifications.delivery.woken import WokenDrain
from outbox.delivery.rows.outcomes import DUE_STATES
from outbox.events.publishing import notify
from outbox.wal.follower import Follower, State
from outbox.wal.pgoutput import Committed, Watched

EMAILS = Watched(
    "email_notifications",
    column="status",
    values=frozenset(str(status) for status in DUE_STATES),
    has_updates=True,
)
EVENTS = Watched("outbox_events")
WATCHED = (EMAILS, EVENTS)
#: The heartbeat of the follower that receives the stream.
FOLLOWER = "follower"
#: Seconds between claims while no follower is known to receive.
POLL_SECONDS = 1.0


class Looks:
    """The follower's listener. It wakes the drain and the relays."""

    def __init__(self, emails: WokenDrain) -> None:
        self._emails = emails
        self._beats = Beats(FOLLOWER)

    def became(self, state: State, /) -> None:
        self._emails.poll_every(POLL_SECONDS if state == "away" else math.inf)
        if state == "streaming":
            self._emails.poll_now()

    def changed(self, committed: Committed, /) -> None:
        if EMAILS.table in committed.tables:
            self._emails.wake(committed.xid)
        if EVENTS.table in committed.tables and settings.FAST_PATH:
            notify.waker.wake()  # through Redis; without Redis a relay queries every half second

    def alive(self) -> None:
        self._beats.beat()


def follower(emails: WokenDrain) -> Follower:
    return Follower(
        params=lambda: connections["replication"].get_connection_params(),
        watched=WATCHED,
        listener=Looks(emails),
    )
