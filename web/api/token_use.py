"""When each token was last used. A request only notes its token in memory, which costs no statement.

The thread of the web process's heartbeat writes the notes a few seconds later. A process that is killed in
between loses them. All processes together write a token at most once an hour.
"""

from __future__ import annotations

import time
import uuid

from django.db import connection

HOUR_SECONDS = 3600.0

_noted: set[uuid.UUID] = set()
#: Until when this process does not note a token again, by the monotonic clock.
_written_until: dict[uuid.UUID, float] = {}


def note(id: uuid.UUID) -> None:
    """Remember that a token was used, unless this process wrote that less than an hour ago."""
    if time.monotonic() >= _written_until.get(id, 0.0):
        _noted.add(id)


def write() -> int:
    """Write the noted tokens and return the number of rows changed. They stay noted if the database fails.

    Skip locked rows: another process writes the same, or somebody revokes the token.
    """
    if not (ids := list(_noted)):
        return 0
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE api_tokens SET last_used_at = statement_timestamp() WHERE id IN (
                SELECT id FROM api_tokens WHERE id = ANY(%s) AND (
                    last_used_at IS NULL
                    OR last_used_at <= statement_timestamp() - %s * interval '1 second'
                ) FOR NO KEY UPDATE SKIP LOCKED)
            """,
            [ids, HOUR_SECONDS],
        )
        changed = int(cursor.rowcount)
    until = time.monotonic() + HOUR_SECONDS
    for id in ids:
        _written_until[id] = until
        _noted.discard(id)
    return changed


def forget() -> None:
    """Forget all tokens, as a new process does."""
    _noted.clear()
    _written_until.clear()
