"""Erase what `.dlt` events quote of a person's dead events. Their `aggregate_id` is the dead event's id."""

from __future__ import annotations

from retention.partitions.locks import no_statement_timeout
from retention.person import Person
from retention.texts_of_person import THEIRS, values_of


def erase_copies(*, person: Person, using: str, table: str) -> int:
    """Erase from `outbox_events` or a detached day of it. Return the number of changed rows."""
    with no_statement_timeout(using=using) as cursor:
        cursor.execute(
            f"""
            UPDATE {table} SET payload = (payload - 'originalEvent') || '{{"errorMessage": "[erased]"}}'
            WHERE aggregate_id = ANY(ARRAY(SELECT event_id FROM inbound_dead_letters WHERE {THEIRS}))
                AND event_type LIKE '%%.dlt' AND payload ? 'originalEvent'
            """,  # noqa: S608 - the name of a partition
            values_of(person),
        )
        return int(cursor.rowcount)
