"""The statement that writes outcomes into rows. `DeliverableQuerySet` has locked them before."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict, get_type_hints

from django.db.backends.base.base import BaseDatabaseWrapper

from outbox.delivery.rows.attempts import entry_of
from outbox.delivery.rows.decision import Decision
from outbox.delivery.rows.fingerprint import fingerprint_of
from outbox.delivery.rows.outcomes import UNTRIED, Outcome, Status, make_storable

MESSAGE_ID_LIMIT = 255


class New(TypedDict):
    """The new values of a row, each with its type in SQL."""

    id: Annotated[str, "uuid"]
    status: Annotated[str, "text"]
    retry_count: Annotated[int, "int"]
    wait: Annotated[float | None, "float8"]  # seconds, or None if the row keeps its place
    failures: Annotated[list[dict[str, Any]], "jsonb"]  # entries without time, to append to the row's errors
    untried: Annotated[bool, "bool"]
    error: Annotated[str, "text"]
    fingerprint: Annotated[str | None, "text"]
    provider: Annotated[str, "text"]
    message_id: Annotated[str, "text"]


_COLUMNS = ", ".join(
    f"{name} {hint.__metadata__[0]}" for name, hint in get_type_hints(New, include_extras=True).items()
)


def write_outcomes(
    connection: BaseDatabaseWrapper, table: str, rows: Sequence[tuple[uuid.UUID, Outcome, Decision]]
) -> None:
    """Write decisions into the rows with these ids. `table` is a quoted name."""
    document = json.dumps([_new(*row) for row in rows])
    # The statement gets the ids twice. The join finds each row's values. The list prunes partitions and makes
    # the plan use the primary key.
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
                errors = CASE WHEN new.failures = '[]' THEN row.errors ELSE row.errors || (
                    SELECT jsonb_agg(jsonb_build_object('at', statement_timestamp()) || entry ORDER BY place)
                    FROM jsonb_array_elements(new.failures) WITH ORDINALITY AS each (entry, place)) END,
                provider = coalesce(nullif(new.provider, ''), row.provider),
                provider_message_id = coalesce(nullif(new.message_id, ''), row.provider_message_id),
                updated_at = statement_timestamp()
            FROM jsonb_to_recordset(%s::jsonb) AS new ({_COLUMNS})
            WHERE row.id = new.id AND row.id = ANY(%s::uuid[])
            """,  # noqa: S608 - the table's name is the model's
            [document, [id for id, _, _ in rows]],
        )


def _new(id: uuid.UUID, outcome: Outcome, decision: Decision) -> New:
    error = "" if decision.status == Status.SENT else outcome.error
    return {
        "id": str(id),
        "status": str(decision.status),
        "retry_count": decision.retry_count,
        "wait": None if decision.wait_seconds is None else float(decision.wait_seconds),
        "failures": [entry_of(failure) for failure in decision.failures],
        "untried": outcome.verdict in UNTRIED,
        "error": error,
        "fingerprint": fingerprint_of(provider=outcome.provider, error=error) if error else None,
        "provider": outcome.provider,
        "message_id": make_storable(outcome.provider_message_id)[:MESSAGE_ID_LIMIT],
    }
