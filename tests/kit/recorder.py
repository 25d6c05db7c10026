"""A consumer of the drills in a separate process: `python -m tests.kit.recorder GROUP TOPIC …`.

Its effect is a row in `recorded` for each event, in the inbox's transaction. So that table shows in which
order events had their effect, and how often.
"""

from __future__ import annotations

import os
import secrets
import sys

import django

TABLE = """
    CREATE TABLE recorded (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        event_id uuid NOT NULL,
        topic text NOT NULL,
        sequence int NOT NULL,
        by text NOT NULL,
        at timestamptz NOT NULL DEFAULT clock_timestamp()
    )
"""
#: The differences between the record and the outbox, by kind.
FAULTS = """
    SELECT
        (SELECT count(*) FROM outbox_events AS e WHERE event_type LIKE 'test.%'
            AND NOT EXISTS (SELECT FROM recorded WHERE event_id = e.id)) AS missing,
        (SELECT count(*) - count(DISTINCT event_id) FROM recorded) AS doubled,
        (SELECT count(*) FROM recorded AS r
            WHERE NOT EXISTS (SELECT FROM outbox_events WHERE id = r.event_id)) AS strange,
        (SELECT count(*) FROM (
            SELECT r.sequence, lag(r.sequence) OVER (PARTITION BY topic, aggregate_id ORDER BY r.id) AS last
            FROM recorded AS r JOIN outbox_events AS e ON e.id = event_id
        ) AS pairs WHERE sequence < last) AS misordered,
        (SELECT count(*) FROM outbox_events WHERE retry_count > 0 OR dead_lettered_at IS NOT NULL) AS blamed,
        (SELECT count(*) FROM inbound_dead_letters) AS dead
"""


def main() -> None:
    """Record until a signal comes."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    django.setup()
    from django.db import connection

    from events import transports
    from events.consuming import consumer
    from events.consuming.envelope import Envelope
    from runtime.process.loop import stop_on_signals

    group, *topics = sys.argv[1:]
    me = f"{group}:{os.getpid()}:{secrets.token_hex(2)}"

    def record(event: Envelope) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO recorded (event_id, topic, sequence, by) VALUES (%s, %s, %s, %s)",
                [event.id, event.type, event.metadata["sequence"], me],
            )

    consumer.run(
        connect=lambda: transports.consumer(topics=topics, group=group, name=me),
        name=group,
        handlers=dict.fromkeys(topics, record),
        stopped=stop_on_signals(),
    )


if __name__ == "__main__":
    main()
