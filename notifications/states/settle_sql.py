"""The statements that lock rows and write outcomes into them, for `EmailNotificationQuerySet`."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from notifications.states.attempts import entry_of
from notifications.states.decision import Decision
from notifications.states.outcomes import UNTRIED, Outcome
from notifications.states.transitions import Status
from runtime.database.postgres.cursor import Prepared
from runtime.database.texts import make_storable

MESSAGE_ID_LIMIT = 255
#: The columns of the state and of log lines, which claimed and settled rows have.
STATE = (
    "id, status, claim_token, retry_count, max_retries, errors, provider, correlation_id, traceparent,"
    " resent_at, order_id, event_type, recipient_email, to_name, shop_copy_of"
)
LOCK = Prepared(
    f"SELECT {STATE} FROM email_notifications WHERE id = ANY(%s) ORDER BY id FOR UPDATE"  # noqa: S608
)

#: The new values of a row. `wait` is in seconds, or null if the row keeps its place. `failures` are entries
#: without time, to append to the row's errors.
_VALUES = (
    "id uuid, status text, retry_count int, wait float8, failures jsonb, untried bool, error text,"
    " provider text, message_id text"
)
# The statement gets the ids twice. The join finds each row's values. The list makes the plan use the primary
# key, and prunes partitions while PostgreSQL still plans for values.
_WRITE = Prepared(
    f"""
    UPDATE email_notifications AS row SET
        status = new.status,
        retry_count = new.retry_count,
        next_attempt_at = coalesce(
            statement_timestamp() + new.wait * interval '1 second', row.next_attempt_at),
        claimed_at = NULL,
        claim_token = NULL,
        sent_at = CASE WHEN new.status = 'sent' THEN statement_timestamp() END,
        last_error = CASE WHEN new.untried THEN row.last_error ELSE new.error END,
        errors = CASE WHEN new.failures = '[]' THEN row.errors ELSE row.errors || (
            SELECT jsonb_agg(jsonb_build_object('at', statement_timestamp()) || entry ORDER BY place)
            FROM jsonb_array_elements(new.failures) WITH ORDINALITY AS each (entry, place)) END,
        provider = coalesce(nullif(new.provider, ''), row.provider),
        provider_message_id = coalesce(nullif(new.message_id, ''), row.provider_message_id),
        updated_at = statement_timestamp()
    FROM jsonb_to_recordset(%s::jsonb) AS new ({_VALUES})
    WHERE row.id = new.id AND row.id = ANY(%s::uuid[])
    """  # noqa: S608 - only constants are inserted
)


def write_outcomes(
    connection: BaseDatabaseWrapper, rows: Sequence[tuple[uuid.UUID, Outcome, Decision]]
) -> None:
    """Write decisions and what the outcomes say into the rows with these ids."""
    document = json.dumps([_values(*row) for row in rows])
    with connection.cursor() as cursor:
        cursor.execute(_WRITE, [document, [id for id, _, _ in rows]])


def _values(id: uuid.UUID, outcome: Outcome, decision: Decision) -> dict[str, Any]:
    status, retry_count, wait_seconds = decision
    error = "" if status == Status.SENT else outcome.error
    return {
        "id": str(id),
        "status": str(status),
        "retry_count": retry_count,
        "wait": None if wait_seconds is None else float(wait_seconds),
        "failures": [entry_of(failure) for failure in outcome.failures],
        "untried": outcome.verdict in UNTRIED,
        "error": error,
        "provider": outcome.provider,
        "message_id": make_storable(outcome.provider_message_id)[:MESSAGE_ID_LIMIT],
    }
