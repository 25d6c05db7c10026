"""Erase and export a person's data in stored answers of idempotent requests and in dead events.

SQL preselects rows that have the address or an order's id as a part of their text. Python then checks that
the address is complete.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from retention.partitions.locks import no_statement_timeout
from retention.person import Person
from runtime.personal_data import ERASED

_ANSWERS = "idempotency_keys WHERE lower(answer_body) LIKE ANY(%s)"
_ANSWER_TEXTS = ("answer_body",)
_DEAD_EVENTS = "inbound_dead_letters WHERE lower(concat_ws(' ', key, envelope, error)) ~ ANY(%s)"
_EVENT_TEXTS = ("key", "envelope", "error")


class OtherTexts(NamedTuple):
    """Texts that another app stores as they came. Both functions get the `person`, and answer by table."""

    erase: Callable[..., Counter[str]]
    export: Callable[..., dict[str, list[dict[str, Any]]]]


_other_texts: list[OtherTexts] = []


def register_texts(texts: OtherTexts) -> None:
    _other_texts.append(texts)


def json_patterns(texts: Iterable[str]) -> list[str]:
    """Make regular expressions that find each text anywhere, in lower case, also as JSON may escape it.

    A dead event is stored as it arrived, and some producers write `'` or `ä` as a code in hex digits.
    """
    return ["".join(map(_character, text.lower())) for text in texts]


def _character(character: str) -> str:
    """Match a character in both cases. PostgreSQL's `lower` may change only ASCII."""
    cases = {character, character.upper()} if len(character.upper()) == 1 else {character}
    codes = [rf"\\+u{ord(case):04x}" for case in cases if ord(case) < 0x10000]
    slash = [r"\\+/"] if character == "/" else []
    return "(?:" + "|".join(sorted([*map(re.escape, cases), *codes, *slash])) + ")"


def erase_answers(*, person: Person) -> Counter[str]:
    """Erase a person from stored answers and dead events. Return the number of changed rows by table.

    A row is the person's if it names an order of theirs or their address. An erased answer keeps only its
    ids, and a repeated request still gets it and does nothing twice. Nothing is left to replay of an erased
    dead event, which is marked as discarded.
    """
    counts: Counter[str] = Counter()
    with no_statement_timeout(using="default") as cursor:
        for row in _rows(cursor, "scope, key, answer_body", _ANSWERS, _answer_patterns(person), lock=True):
            if not _names(row, person, _ANSWER_TEXTS):
                continue
            new_body = _only_ids(row["answer_body"])
            if new_body != row["answer_body"]:
                cursor.execute(
                    "UPDATE idempotency_keys SET answer_body = %s WHERE scope = %s AND key = %s",
                    [new_body, row["scope"], row["key"]],
                )
                counts["idempotency_keys"] += 1
        columns = "id, event_id, key, envelope, error"
        events = _rows(cursor, columns, _DEAD_EVENTS, _event_patterns(person), lock=True)
        events = [row for row in events if _names(row, person, _EVENT_TEXTS)]
        ids = [row["event_id"] for row in events]
        counts["outbox_events"] += _erase_copies(cursor, "outbox_events", ids)
        cursor.execute(
            """
            UPDATE inbound_dead_letters SET key = '', envelope = %s, error = %s,
                discarded_at = CASE WHEN replayed_at IS NULL
                    THEN coalesce(discarded_at, statement_timestamp()) ELSE discarded_at END
            WHERE id = ANY(%s)
            """,
            [ERASED, ERASED, [row["id"] for row in events]],
        )
        counts["inbound_dead_letters"] += cursor.rowcount
    for texts in _other_texts:
        counts += texts.erase(person=person)
    return counts


def erase_copies(*, person: Person, using: str, table: str) -> int:
    """Erase the copies of a person's dead events in a detached day. Return the number of changed rows.

    Call this before `erase_answers`. Afterwards no dead event leads to the person.
    """
    with no_statement_timeout(using=using) as cursor:
        columns = "id, event_id, key, envelope, error"
        events = _rows(cursor, columns, _DEAD_EVENTS, _event_patterns(person))
        ids = [row["event_id"] for row in events if _names(row, person, _EVENT_TEXTS)]
        return _erase_copies(cursor, table, ids)


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


def export_answers(*, person: Person) -> dict[str, list[dict[str, Any]]]:
    """Return the stored answers and the dead events that name a person, by table.

    The returned copies have placeholders for other people's addresses.
    """
    with no_statement_timeout(using="default") as cursor:
        answers = _rows(cursor, "*", _ANSWERS, _answer_patterns(person))
        events = _rows(cursor, "*", _DEAD_EVENTS, _event_patterns(person))
    exported = {
        "idempotency_keys": [
            person.only_their_address(row) for row in answers if _names(row, person, _ANSWER_TEXTS)
        ],
        "inbound_dead_letters": [
            person.only_their_address(row) for row in events if _names(row, person, _EVENT_TEXTS)
        ],
    }
    for texts in _other_texts:
        exported |= texts.export(person=person)
    return exported


def _answer_patterns(person: Person) -> list[str]:
    """Return LIKE patterns that find each text anywhere, in lower case, with wildcards escaped."""
    texts = [*map(str, person.owner_ids), *filter(None, [person.address])]
    return ["%" + re.sub(r"([%_\\])", r"\\\1", text.lower()) + "%" for text in texts]


def _event_patterns(person: Person) -> list[str]:
    return json_patterns([*map(str, person.owner_ids), *person.spellings()])


def _rows(
    cursor: Any, columns: str, rows: str, patterns: list[str], lock: bool = False
) -> list[dict[str, Any]]:
    lock_them = " FOR UPDATE" if lock else ""
    cursor.execute(f"SELECT {columns} FROM {rows} ORDER BY 1, 2{lock_them}", [patterns])  # noqa: S608
    names = [column.name for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _names(row: Mapping[str, Any], person: Person, columns: Iterable[str]) -> bool:
    return any(person.is_named_in(row[column] or "") for column in columns)


def _only_ids(body: str) -> str:
    """Return an answer, which is a JSON object, with nothing but its ids."""
    ids = {
        field: value for field, value in json.loads(body).items() if field == "id" or field.endswith("_id")
    }
    return json.dumps(ids, separators=(",", ":"))
