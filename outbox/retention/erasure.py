"""Erases a person's rows from any partitioned table, live, detached or restored, and from stored answers.

What is personal in a table stands in its model (`personal`, `erased`); whose rows are meant is said by the
ids of their owners (orders). Called by orders.privacy and, for archives, by outbox.retention.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction

from outbox.core.privacy import ERASED, ERASED_ADDRESS

if TYPE_CHECKING:
    from outbox.core.partitioned import PartitionedModel

#: The fields of our own API's answers that are personal, and what stands there afterwards.
_ANSWERED = {
    "email": ERASED_ADDRESS,
    "recipient_email": ERASED_ADDRESS,
    "name": "",
    "subject": ERASED,
    "last_error": ERASED,
}


def erase_rows(
    *, model: PartitionedModel, owner_ids: Sequence[uuid.UUID], using: str, table: str = ""
) -> int:
    """This function will erase what is personal in the rows of these owners, locking in id order.

    `table` is the model's own unless one of its detached or restored partitions is named. Returns the
    number of rows changed; those that were erased before are not counted and not touched.
    """
    quote = connections[using].ops.quote_name
    name = quote(table or model._meta.db_table)
    changes = ", ".join(f"{quote(column)} = {sql}" for column, sql in model.retention.erased.items())
    owner = quote(model.retention.owner_column)
    # The models' own SQL may have per cent signs, and the statement has a parameter.
    personal, changes = model.retention.personal.replace("%", "%%"), changes.replace("%", "%%")
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(
            f"UPDATE {name} SET {changes} WHERE id = ANY(ARRAY("  # noqa: S608 - all from our own models
            f"SELECT id FROM {name} WHERE {owner} = ANY(%s) AND {personal} ORDER BY id FOR UPDATE))",
            [list(owner_ids)],
        )
        return int(cursor.rowcount)


def scrub_answers(*, owner_ids: Iterable[uuid.UUID], addresses: Sequence[str], using: str = "default") -> int:
    """This function will erase a person from the stored answers of idempotent requests, and dead events.

    An answer is theirs if it names an owner or an address. The answer to a repeated request is then the
    erased one; a key that is itself made of the address is replaced, so it is no longer recognised.
    """
    marks = [str(owner) for owner in owner_ids] + [address.lower() for address in addresses]
    if not marks:
        return 0
    patterns = [f"%{_like(mark)}%" for mark in marks]
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(
            """
            SELECT scope, key, answer_body FROM idempotency_keys
            WHERE scope <> 'email' AND (lower(answer_body) LIKE ANY(%s) OR lower(key) LIKE ANY(%s))
            ORDER BY scope, key FOR UPDATE
            """,
            [patterns, patterns],
        )
        found = cursor.fetchall()
        changes = [
            (scope, key, _new_key(key, addresses), after)
            for scope, key, body in found
            if (after := _scrub(body)) != body or _new_key(key, addresses) != key
        ]
        for scope, key, new_key, body in changes:
            cursor.execute(
                "UPDATE idempotency_keys SET key = %s, answer_body = %s WHERE scope = %s AND key = %s",
                [new_key, body, scope, key],
            )
        # An event of another service may have an address in it: as it was kept, and as a dead letter.
        cursor.execute(
            """
            WITH scrubbed AS (
                UPDATE dead_events SET envelope = %s WHERE lower(envelope) LIKE ANY(%s) RETURNING event_id)
            UPDATE outbox_events SET payload = payload - 'originalEvent'
            WHERE aggregate_id IN (SELECT event_id FROM scrubbed)
            """,
            [ERASED, patterns],
        )
    return len(changes)


def _like(text: str) -> str:
    """Text to be found as it is by LIKE."""
    return re.sub(r"([%_\\])", r"\\\1", text)


def _new_key(key: str, addresses: Iterable[str]) -> str:
    named = any(address.lower() in key.lower() for address in addresses)
    return f"erased-{hashlib.sha256(key.encode()).hexdigest()}" if named else key


def _scrub(body: str) -> str:
    try:
        document = json.loads(body)
    except ValueError:
        return body
    return json.dumps(_scrubbed(document), ensure_ascii=False, separators=(",", ":"))


def _scrubbed(value: Any) -> Any:
    if isinstance(value, list):
        return [_scrubbed(one) for one in value]
    if isinstance(value, dict):
        return {key: _scrubbed_field(key, one) for key, one in value.items()}
    return value


def _scrubbed_field(key: str, value: Any) -> Any:
    if key == "items":  # of an order: what was bought has a name too
        return value
    if key in _ANSWERED and isinstance(value, str):
        return _ANSWERED[key] if value else ""
    return _scrubbed(value)
