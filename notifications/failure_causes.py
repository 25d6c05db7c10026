"""Group dead letters by the fingerprint of their error."""

from __future__ import annotations

import dataclasses
import uuid

from django.db import connections, transaction

from notifications.models import EmailNotification, EmailNotificationQuerySet
from outbox.delivery.rows.fingerprint import fingerprint_of
from outbox.delivery.rows.outcomes import Status

#: Counts of a group stop here, and so does the search for groups.
COUNT_LIMIT = 10_000
MOST_CAUSES = 200


@dataclasses.dataclass(frozen=True, slots=True)
class FailureCause:
    """A group of dead letters: its count (at most COUNT_LIMIT + 1), and its oldest and newest id."""

    fingerprint: str
    count: int
    oldest: uuid.UUID
    newest: uuid.UUID


def dead_causes(rows: EmailNotificationQuerySet) -> list[FailureCause]:
    """Return the causes of dead letters, the most frequent first.

    One statement jumps from one fingerprint to the next on the index of causes. So its cost depends on the
    number of groups and on COUNT_LIMIT, but not on the number of dead letters.
    """
    connection = connections[rows.db]
    table = connection.ops.quote_name(rows.model._meta.db_table)
    dead = f"FROM {table} WHERE status = 'dead_lettered'"
    group = f"{dead} AND error_fingerprint = found.fingerprint"
    statement = f"""
        WITH RECURSIVE found (fingerprint, place) AS (
            (SELECT error_fingerprint, 1 {dead} AND error_fingerprint IS NOT NULL
             ORDER BY error_fingerprint LIMIT 1)
            UNION ALL
            SELECT (SELECT error_fingerprint {dead} AND error_fingerprint > found.fingerprint
                    ORDER BY error_fingerprint LIMIT 1), place + 1
            FROM found WHERE found.fingerprint IS NOT NULL AND place < {MOST_CAUSES}
        )
        SELECT fingerprint, (SELECT count(*) FROM (SELECT 1 {group} LIMIT {COUNT_LIMIT + 1}) AS few),
            (SELECT id {group} ORDER BY error_fingerprint, id LIMIT 1),
            (SELECT id {group} ORDER BY error_fingerprint DESC, id DESC LIMIT 1)
        FROM found WHERE fingerprint IS NOT NULL
        """  # noqa: S608 - the table's name is the model's
    with connection.cursor() as cursor:
        cursor.execute(statement)
        causes = [FailureCause(*row) for row in cursor.fetchall()]
    return sorted(causes, key=lambda cause: -cause.count)


def fill_fingerprints(rows: EmailNotificationQuerySet, *, limit: int) -> int:
    """Write the fingerprint of up to `limit` dead letters of release 0.1.0. Return how many."""
    with transaction.atomic(using=rows.db):
        without = rows.filter(status=Status.DEAD_LETTERED, error_fingerprint=None)
        locked = without.select_for_update(skip_locked=True).order_by("id")
        found: list[EmailNotification] = list(locked.only("id", "provider", "last_error")[:limit])
        for row in found:
            row.error_fingerprint = fingerprint_of(provider=row.provider, error=row.last_error)
        rows.bulk_update(found, ["error_fingerprint"])
    return len(found)
