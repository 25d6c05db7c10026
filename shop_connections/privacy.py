"""Export and erase a person in the posts of connected shops.

A post is the person's if it has their complete address, or became an order of theirs.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from orders.privacy.stored_answers import json_patterns
from retention.partitions.locks import no_statement_timeout
from retention.person import Person
from runtime.personal_data import ERASED
from shop_connections.models import ConnectionPost

_FIND = """
    SELECT id, order_id, source, body, reference, received_at FROM connection_posts
    WHERE lower(body) ~ ANY(%s) OR order_id = ANY(%s) ORDER BY id
    """


def erase_posts(*, person: Person) -> Counter[str]:
    """Erase the bodies. A post that still waits is done: nothing is left to process.

    Return the number of changed rows by table.
    """
    with no_statement_timeout(using="default") as cursor:
        ids = [row["id"] for row in _find(cursor, person, "FOR UPDATE") if row["body"] != ERASED]
        cursor.execute(
            """
            UPDATE connection_posts SET body = %s, reason = '', state = 'done',
                done_at = coalesce(done_at, statement_timestamp())
            WHERE id = ANY(%s)
            """,
            [ERASED, ids],
        )
        return +Counter({ConnectionPost._meta.db_table: cursor.rowcount})


def export_posts(*, person: Person) -> dict[str, list[dict[str, Any]]]:
    """Return the posts by table, with placeholders for other people's addresses."""
    with no_statement_timeout(using="default") as cursor:
        rows = _find(cursor, person)
    return {ConnectionPost._meta.db_table: [person.only_their_address(row) for row in rows]}


def _find(cursor: Any, person: Person, lock: str = "") -> list[dict[str, Any]]:
    owner_ids = list(person.owner_ids)
    cursor.execute(_FIND + lock, [json_patterns(person.spellings()), owner_ids])
    names = [column.name for column in cursor.description]
    rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return [
        row
        for row in rows
        if row["order_id"] in person.owner_ids or person.is_named_in(row["body"], orders=False)
    ]
