"""Erase a person from texts that operators typed: reasons of jobs, pauses and acts, and filters of jobs.

A new text has no address, because `outbox.privacy.refuse_addresses` refuses it, but an old one or one of
release 0.1.0 may. Names are compared as whole words, in any case. Called by orders.privacy.erasure.
"""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from django.db.backends.utils import CursorWrapper

from outbox.privacy import ERASED
from outbox.retention.partitions.locks import no_statement_timeout
from outbox.retention.people.stored_answers import json_patterns
from outbox.retention.person import Person

#: A shorter word of a name, such as "de", is also a word of other texts.
_SHORTEST = 3

Named = Callable[[str], bool]


def erase_typed_texts(
    *, person: Person, names: Collection[str], ids: Collection[uuid.UUID], using: str = "default"
) -> Counter[str]:
    """Erase what operators typed about a person, and return the rows changed by table.

    A text names the person by the address or the full name; in the audit rows of `ids`, which are the
    person's orders and e-mails, also by one word of the name. In an audit row our own first sentence stays.
    """
    full = {name.strip() for name in names if " " in name.strip()}
    words = {word for name in names for word in re.findall(r"[^\W\d_]+", name) if len(word) >= _SHORTEST}
    has_name, has_word = _finder(full), _finder(words | full)

    def named(text: str) -> bool:
        return person.is_named_in(text, orders=False) or has_name(text)

    def named_in_theirs(text: str) -> bool:
        return person.is_named_in(text, orders=False) or has_word(text)

    patterns = json_patterns([*person.spellings(), *full])
    counts: Counter[str] = Counter()
    # First the jobs, because a batch that runs now writes the reason into the log.
    with no_statement_timeout(using=using) as cursor:
        counts["bulk_jobs"] = _erase_jobs(cursor, patterns, named)
    with no_statement_timeout(using=using) as cursor:
        counts["pauses"] = _erase_pauses(cursor, named)
    with no_statement_timeout(using=using) as cursor:
        counts["django_admin_log"] = _erase_acts(
            cursor, patterns, [str(id) for id in ids], named, named_in_theirs
        )
    return +counts


def _erase_jobs(cursor: CursorWrapper, patterns: list[str], named: Named) -> int:
    cursor.execute(
        """
        SELECT id, reason, error, filter::text FROM bulk_jobs
        WHERE concat_ws(' ', reason, error, filter::text) ~* ANY(%s) ORDER BY id FOR UPDATE
        """,
        [patterns],
    )
    changed = 0
    for id, *old in cursor.fetchall():
        reason, error, params = old
        if (new := [_erased(reason, named), _erased(error, named), _erased_filter(params, named)]) != old:
            update = "UPDATE bulk_jobs SET reason = %s, error = %s, filter = %s WHERE id = %s"
            cursor.execute(update, [*new, id])
            changed += 1
    return changed


def _erase_pauses(cursor: CursorWrapper, named: Named) -> int:
    cursor.execute("SELECT part, reason FROM pauses ORDER BY part FOR UPDATE")
    parts = [part for part, reason in cursor.fetchall() if named(reason)]
    cursor.execute("UPDATE pauses SET reason = %s WHERE part = ANY(%s)", [ERASED, parts])
    return len(parts)


def _erase_acts(
    cursor: CursorWrapper, patterns: list[str], ids: list[str], named: Named, named_in_theirs: Named
) -> int:
    cursor.execute(
        """
        SELECT id, coalesce(object_id = ANY(%s), false), object_repr, change_message FROM django_admin_log
        WHERE object_id = ANY(%s) OR concat_ws(' ', object_repr, change_message) ~* ANY(%s)
        ORDER BY id FOR UPDATE
        """,
        [ids, ids, patterns],
    )
    changed = 0
    for id, is_theirs, *old in cursor.fetchall():
        which, message = old
        new = [_erased(which, named), _erased_message(message, named_in_theirs if is_theirs else named)]
        if new != old:
            update = "UPDATE django_admin_log SET object_repr = %s, change_message = %s WHERE id = %s"
            cursor.execute(update, [*new, id])
            changed += 1
    return changed


def _finder(names: Collection[str]) -> Named:
    """Return a function that tells whether a text has one of the names."""
    if not names:
        return lambda text: False
    choice = "|".join(re.escape(name) for name in sorted(names))
    pattern = re.compile(rf"(?<!\w)(?:{choice})(?!\w)", re.IGNORECASE)
    return lambda text: pattern.search(text) is not None


def _erased(text: str, named: Named) -> str:
    return ERASED if named(text) else text


def _erased_message(message: str, named: Named) -> str:
    """Erase the typed part of a message, which is "Our own words. The reason", or all if ours names them."""
    ours, dot, typed = message.partition(". ")
    if named(typed):
        return f"{_erased(ours, named)}{dot}{ERASED}"
    return _erased(message, named)


def _erased_filter(params: str, named: Named) -> str:
    """Erase the values of a filter that name the person. A job then finds no row by them."""
    values: Any = json.loads(params)
    if not isinstance(values, dict) or not any(named(str(value)) for value in values.values()):
        return params
    return json.dumps({name: _erased(str(value), named) for name, value in values.items()})
