"""Erase a person from texts that somebody typed: the reasons of jobs, pauses and acts, and failed logins.

Of an audit row, the app's role may change the reason alone. The rest has no text of a person.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection

from retention.partitions.locks import no_statement_timeout
from retention.person import Person
from runtime.personal_data import ERASED

#: (table, its key, its texts). Jobs come first: a batch that runs now writes the reason into the audit.
_TEXTS = (
    ("bulk_jobs", "id", ("reason",)),
    ("pauses", "part", ("reason",)),
    ("audit_rows", "id", ("reason",)),
    # Django's log. A release before the audit, which may still run, writes it.
    ("django_admin_log", "id", ("object_repr", "change_message")),
)


def erase_texts_with_address(*, person: Person) -> Counter[str]:
    """Erase each text that has the complete address. Return the number of changed texts by table.

    `runtime.personal_data.refuse_addresses` refuses an address in a reason. Texts from before that rule are
    not checked.
    """
    counts: Counter[str] = Counter()
    for table, key, columns in _TEXTS:
        for column in columns:
            with no_statement_timeout(using="default") as cursor:
                cursor.execute(
                    f"SELECT {key}, {column} FROM {table}"  # noqa: S608 - all from `_TEXTS`
                    f" WHERE strpos({column}, '@') > 0"
                )
                keys = [key for key, text in cursor.fetchall() if person.is_named_in(text)]
                update = f"UPDATE {table} SET {column} = %s WHERE {key} = ANY(%s)"  # noqa: S608
                cursor.execute(update, [ERASED, keys])
                counts[table] += cursor.rowcount
    counts["axes_accessattempt"] = _erase_logins(person)
    return +counts


def _erase_logins(person: Person) -> int:
    """Delete the wrong passwords for a person's address, and return their number.

    Their columns are unique together, and a replaced name could be taken already.
    """
    with no_statement_timeout(using="default") as cursor:
        cursor.execute("SELECT id, username FROM axes_accessattempt WHERE strpos(username, '@') > 0")
        ids = [id for id, name in cursor.fetchall() if person.is_named_in(name)]
        cursor.execute("DELETE FROM axes_accessattempt WHERE id = ANY(%s)", [ids])
        return int(cursor.rowcount)


def erase_reasons(*, ids: Collection[uuid.UUID]) -> Counter[str]:
    """Erase the reasons of acts on the given orders and e-mails. Return the number of changed rows."""
    with no_statement_timeout(using="default") as cursor:
        cursor.execute(
            """
            UPDATE audit_rows SET reason = %s
            WHERE id = ANY(ARRAY(
                SELECT id FROM audit_rows
                WHERE (order_id = ANY(%s) OR subject_id = ANY(%s)) AND reason NOT IN ('', %s)
                ORDER BY id FOR UPDATE
            ))
            """,
            [ERASED, list(ids), [str(id) for id in ids], ERASED],
        )
        counts = Counter({"audit_rows": cursor.rowcount})
        # A message of Django's log is "Our own words. What was typed".
        cursor.execute(
            """
            UPDATE django_admin_log SET change_message = split_part(change_message, '. ', 1) || %s
            WHERE id = ANY(ARRAY(
                SELECT id FROM django_admin_log
                WHERE object_id = ANY(%s) AND strpos(change_message, '. ') > 0
                    AND change_message <> split_part(change_message, '. ', 1) || %s
                ORDER BY id FOR UPDATE
            ))
            """,
            [f". {ERASED}", [str(id) for id in ids], f". {ERASED}"],
        )
        counts["django_admin_log"] = cursor.rowcount
        return +counts
