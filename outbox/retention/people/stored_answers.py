"""Erase and export a person's data in stored answers of idempotent requests and in dead events.

SQL preselects rows that have the address or an order's id as a part of their text. Python then checks that
the address is complete.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from outbox.privacy import ERASED, ERASED_ADDRESS, hide_addresses
from outbox.retention.partitions.locks import no_statement_timeout
from outbox.retention.person import Person

#: The fields of our API's answers that have an address, and the other personal ones with their replacements.
_ADDRESSES = ("email", "recipient_email")
_PERSONAL = {"name": "", "subject": ERASED, "last_error": ERASED}
_ANSWERS = "idempotency_keys WHERE lower(answer_body) LIKE ANY(%s) OR lower(key) LIKE ANY(%s)"
_DEAD_EVENTS = "dead_events WHERE lower(concat_ws(' ', key, envelope, error)) ~ ANY(%s)"


def like_patterns(texts: Iterable[str]) -> list[str]:
    """Make LIKE patterns that find each text anywhere, in lower case, with wildcards escaped."""
    return [f"%{_like(text.lower())}%" for text in texts]


def json_patterns(texts: Iterable[str]) -> list[str]:
    """Make regular expressions that find each text anywhere, in lower case, also as JSON may escape it.

    A dead event is stored as it arrived, and some producers write `'` or `ä` as a code in hex digits.
    """
    return ["".join(map(_character, text.lower())) for text in texts]


def _character(one: str) -> str:
    """Match a character in both cases, because PostgreSQL's `lower` may change only ASCII."""
    cases = {one, one.upper()} if len(one.upper()) == 1 else {one}
    codes = [rf"\\+u{ord(case):04x}" for case in cases if ord(case) < 0x10000]
    slash = [r"\\+/"] if one == "/" else []
    return "(?:" + "|".join(sorted([*map(re.escape, cases), *codes, *slash])) + ")"


def erase_answers(*, person: Person, using: str = "default") -> Counter[str]:
    """Erase a person from stored answers and dead events. Return the number of changed rows by table.

    A row is the person's if it names an order of theirs or their address. A repeated request then gets the
    erased answer. A key that contains the address is replaced, so a repeated request with it counts as new.
    An erased dead event is marked as discarded, because nothing is left to replay.
    """
    counts: Counter[str] = Counter()
    with no_statement_timeout(using=using) as cursor:
        for row in _rows(cursor, "scope, key, answer_body", _ANSWERS, *_answer_values(person), lock=True):
            new_key = _new_key(row["key"], person)
            new_body = _changed(row["answer_body"], lambda found: _erase_fields(found, person))
            if (new_key, new_body) != (row["key"], row["answer_body"]):
                cursor.execute(
                    "UPDATE idempotency_keys SET key = %s, answer_body = %s WHERE scope = %s AND key = %s",
                    [new_key, new_body, row["scope"], row["key"]],
                )
                counts["idempotency_keys"] += 1
        columns = "id, event_id, key, envelope, error"
        events = _rows(cursor, columns, _DEAD_EVENTS, _event_patterns(person), lock=True)
        events = [row for row in events if _names(row, person)]
        ids = [row["event_id"] for row in events]
        counts["outbox_events"] += _erase_copies(cursor, "outbox_events", ids)
        cursor.execute(
            """
            UPDATE dead_events SET key = '', envelope = %s, error = %s,
                discarded_at = CASE WHEN replayed_at IS NULL
                    THEN coalesce(discarded_at, statement_timestamp()) ELSE discarded_at END
            WHERE id = ANY(%s)
            """,
            [ERASED, ERASED, [row["id"] for row in events]],
        )
        counts["dead_events"] += cursor.rowcount
    return counts


def erase_copies(*, person: Person, using: str, table: str) -> int:
    """Erase the copies of a person's dead events in a detached day. Return the number of changed rows.

    Call this before `erase_answers`, because afterwards no dead event leads to the person.
    """
    with no_statement_timeout(using=using) as cursor:
        columns = "id, event_id, key, envelope, error"
        events = _rows(cursor, columns, _DEAD_EVENTS, _event_patterns(person))
        return _erase_copies(cursor, table, [row["event_id"] for row in events if _names(row, person)])


def _erase_copies(cursor: Any, table: str, event_ids: list[Any]) -> int:
    """Erase what the `.dlt` events of some dead events quote. Their `aggregate_id` is the dead event's id."""
    cursor.execute(
        f"""
        UPDATE {table} SET payload = (payload - 'originalEvent') || '{{"errorMessage": "[erased]"}}'
        WHERE aggregate_id = ANY(%s) AND event_type LIKE '%%.dlt' AND payload ? 'originalEvent'
        """,  # noqa: S608 - the name of a partition
        [event_ids],
    )
    return int(cursor.rowcount)


def export_answers(*, person: Person, using: str = "default") -> dict[str, list[dict[str, Any]]]:
    """Return the stored answers and the dead events that name a person, by table.

    The returned copies have placeholders for other people's addresses.
    """
    with no_statement_timeout(using=using) as cursor:
        answers = _rows(cursor, "*", _ANSWERS, *_answer_values(person))
        events = _rows(cursor, "*", _DEAD_EVENTS, _event_patterns(person))
    return {
        "idempotency_keys": [
            row
            | {
                "key": hide_addresses(row["key"], but=person.has_address),
                "answer_body": _changed(row["answer_body"], lambda found: _hide_others(found, person)),
            }
            for row in answers
            if person.is_named_in(row["answer_body"]) or person.is_named_in(row["key"])
        ],
        "dead_events": [person.only_their_address(row) for row in events if _names(row, person)],
    }


def _answer_values(person: Person) -> tuple[list[str], list[str]]:
    patterns = like_patterns([*map(str, person.owner_ids), *filter(None, [person.address])])
    return patterns, patterns


def _event_patterns(person: Person) -> list[str]:
    return json_patterns([*map(str, person.owner_ids), *person.spellings()])


def _rows(
    cursor: Any, columns: str, rows: str, *values: list[str], lock: bool = False
) -> list[dict[str, Any]]:
    lock_them = " FOR UPDATE" if lock else ""
    cursor.execute(f"SELECT {columns} FROM {rows} ORDER BY 1, 2{lock_them}", values)  # noqa: S608
    names = [column.name for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _names(event: Mapping[str, Any], person: Person) -> bool:
    return any(person.is_named_in(event[column] or "") for column in ("key", "envelope", "error"))


def _like(text: str) -> str:
    return re.sub(r"([%_\\])", r"\\\1", text)


def _new_key(key: str, person: Person) -> str:
    if not person.is_named_in(key, orders=False):
        return key
    return f"erased-{hashlib.sha256(key.encode()).hexdigest()}"


def _changed(body: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> str:
    """Return an answer after applying `change` to each object. Return a text without changes as it is."""
    try:
        document = json.loads(body)
    except ValueError:
        return body
    changed = _walk(document, change)
    return body if changed == document else json.dumps(changed, ensure_ascii=False, separators=(",", ":"))


def _walk(value: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    if isinstance(value, list):
        return [_walk(one, change) for one in value]
    if isinstance(value, dict):
        # Skip the items of an order, because their names are not personal.
        return change({key: one if key == "items" else _walk(one, change) for key, one in value.items()})
    return value


def _is_theirs(found: Mapping[str, Any], person: Person) -> bool:
    """Return whether an object of an answer has a person's address or is their order."""
    if any(person.has_address(str(found.get(field, ""))) for field in _ADDRESSES):
        return True
    return "email" in found and any(str(owner) == found.get("id") for owner in person.owner_ids)


def _erase_fields(found: dict[str, Any], person: Person) -> dict[str, Any]:
    theirs = _is_theirs(found, person)

    def erased(field: str, value: Any) -> Any:
        if not isinstance(value, str) or not value:
            return value
        if field in _ADDRESSES:
            return ERASED_ADDRESS if person.has_address(value) else value
        if field in _PERSONAL and (theirs or person.is_named_in(value, orders=False)):
            return _PERSONAL[field]
        return value

    return {field: erased(field, value) for field, value in found.items()}


def _hide_others(found: dict[str, Any], person: Person) -> dict[str, Any]:
    theirs = _is_theirs(found, person)
    if not theirs and not any(field in found for field in _ADDRESSES):
        return found  # an error of our API, or an object inside an order

    def shown(field: str, value: Any) -> Any:
        if field in _ADDRESSES and isinstance(value, str) and not person.has_address(value):
            return ERASED_ADDRESS
        return _PERSONAL[field] if field in _PERSONAL and not theirs else value

    return {field: shown(field, value) for field, value in found.items()}
