"""Count the refusals over HTTP. The admin shows it, because the shop's developer asks there.

A refusal is only noted in memory, which no rolled-back transaction undoes. The thread of the web process's
heartbeat writes the notes seconds later, so that a flood of refusals is one write. A process that is killed
in between loses them.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from typing import NamedTuple

from django.db import connection

#: Rows of the table, and different refusals that a process notes between two writes.
MOST = 1000
#: What a reason repeats of the event: texts in quotes, ids and numbers.
_VALUES = re.compile(
    r"""(?<!\w)'(?:\\.|[^'\\])*'(?!\w)|"(?:\\.|[^"\\])*"|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\d[\d.,:]*"""
)


class RefusalNote(NamedTuple):
    sender: str
    topic: str
    reason: str


_noted: Counter[RefusalNote] = Counter()
_lock = threading.Lock()


def without_values(reason: str) -> str:
    """Return a reason without what it repeats of the event.

    >>> without_values("its producer 'shop-c' is not in ORDER_SOURCES")
    'its producer … is not in ORDER_SOURCES'
    """
    return _VALUES.sub("…", reason)[:300]


def note(*, sender: str, topic: str, reason: str) -> None:
    """Count a refusal in memory. Leave it out if `MOST` others wait to be written."""
    refusal = RefusalNote(sender[:100], topic[:100], without_values(reason))
    with _lock:
        if refusal in _noted or len(_noted) < MOST:
            _noted[refusal] += 1


def write() -> int:
    """Write the notes, and keep the newest `MOST` rows. Return the number of rows written.

    The notes stay if the database fails.
    """
    with _lock:
        notes = dict(_noted)
    if not notes:
        return 0
    refusals = sorted(notes)  # processes that write at the same time lock their rows in one order
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO refused_events AS old (id, sender, topic, reason, count)
            SELECT gen_random_uuid(), new.* FROM unnest(%s::text[], %s::text[], %s::text[], %s::int[]) AS new
            ON CONFLICT (sender, topic, reason) DO UPDATE
                SET count = old.count + excluded.count, last_at = statement_timestamp()
            """,
            [*map(list, zip(*refusals, strict=True)), [notes[refusal] for refusal in refusals]],
        )
        cursor.execute(
            "DELETE FROM refused_events WHERE id IN"
            " (SELECT id FROM refused_events ORDER BY last_at DESC, id OFFSET %s)",
            [MOST],
        )
    with _lock:
        _noted.subtract(notes)
        for refusal in refusals:
            if _noted[refusal] <= 0:
                del _noted[refusal]
    return len(refusals)


def forget() -> None:
    """Forget all notes, as a new process does."""
    with _lock:
        _noted.clear()
