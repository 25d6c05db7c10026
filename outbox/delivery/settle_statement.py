"""The one statement that writes outcomes into rows, which `DeliverableQuerySet` has locked before."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence

from django.db.backends.base.base import BaseDatabaseWrapper

from outbox.delivery.attempts import entry_of
from outbox.delivery.decision import Decision
from outbox.delivery.fingerprint import fingerprint_of
from outbox.delivery.outcomes import UNTRIED, Outcome, Status


def write(
    connection: BaseDatabaseWrapper, table: str, rows: Sequence[tuple[uuid.UUID, Outcome, Decision]]
) -> None:
    """Write decisions into the rows with these ids; `table` is a quoted name."""
    columns = zip(*(_values(*row) for row in rows), strict=True)
    # The ids stand twice: the join brings each row its values, the list prunes partitions and keeps the plan
    # on the primary key.
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            UPDATE {table} AS row SET
                status = new.status,
                retry_count = new.retry_count,
                next_attempt_at = coalesce(
                    statement_timestamp() + new.wait * interval '1 second', row.next_attempt_at),
                claimed_at = NULL,
                claim_token = NULL,
                sent_at = CASE WHEN new.status = 'sent' THEN statement_timestamp() END,
                last_error = CASE WHEN new.untried THEN row.last_error ELSE new.error END,
                error_fingerprint = CASE WHEN new.untried THEN row.error_fingerprint ELSE new.fingerprint END,
                errors = CASE WHEN new.entries = '[]' THEN row.errors ELSE row.errors || (
                    SELECT jsonb_agg(jsonb_build_object('at', statement_timestamp()) || entry ORDER BY place)
                    FROM jsonb_array_elements(new.entries::jsonb) WITH ORDINALITY AS each (entry, place)) END,
                provider = coalesce(nullif(new.provider, ''), row.provider),
                provider_message_id = coalesce(nullif(new.message_id, ''), row.provider_message_id),
                updated_at = statement_timestamp()
            FROM unnest(%s::uuid[], %s::text[], %s::int[], %s::float8[], %s::text[], %s::bool[],
                        %s::text[], %s::text[], %s::text[], %s::text[])
                AS new (id, status, retry_count, wait, entries, untried, error, fingerprint, provider,
                        message_id)
            WHERE row.id = new.id AND row.id = ANY(%s::uuid[])
            """,  # noqa: S608 - the table's name is the model's
            [*(list(column) for column in columns), [id for id, _, _ in rows]],
        )


def _values(id: uuid.UUID, outcome: Outcome, decision: Decision) -> tuple[object, ...]:
    """Return one row's values, in the order of the statement's arrays."""
    error = "" if decision.status == Status.SENT else outcome.error
    return (
        id,
        str(decision.status),
        decision.retry_count,
        None if decision.wait is None else float(decision.wait),
        json.dumps([entry_of(failure) for failure in decision.failures]) if decision.failures else "[]",
        outcome.verdict in UNTRIED,
        error,
        fingerprint_of(provider=outcome.provider, error=error) if error else None,
        outcome.provider,
        outcome.provider_message_id,
    )
