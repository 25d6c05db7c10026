"""Erase and export a person's data in stored answers of idempotent requests and in dead events."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from outbox.core.privacy import ERASED, ERASED_ADDRESS
from outbox.retention.locks import no_statement_timeout

#: The personal fields of our own API's answers, and the value that replaces each.
_ANSWERED = {
    "email": ERASED_ADDRESS,
    "recipient_email": ERASED_ADDRESS,
    "name": "",
    "subject": ERASED,
    "last_error": ERASED,
}
_ANSWERS = (
    "idempotency_keys WHERE scope <> 'email' AND (lower(answer_body) LIKE ANY(%s) OR lower(key) LIKE ANY(%s))"
)
_DEAD_EVENTS = "dead_events WHERE lower(concat_ws(' ', key, envelope, error)) ~ ANY(%s)"


def like_patterns(texts: Iterable[str]) -> list[str]:
    """Make LIKE patterns that find each text anywhere, in lower case, wildcards taken literally."""
    return [f"%{_like(text.lower())}%" for text in texts]


def _json_patterns(texts: Iterable[str]) -> list[str]:
    """Make regular expressions that find each text anywhere, in lower case, also as JSON may escape it.

    A dead event is kept as it came, and some producers write `'` or `ä` by its code in hex digits.
    """
    return ["".join(map(_character, text.lower())) for text in texts]


def _character(one: str) -> str:
    """Match a character in both cases: PostgreSQL's `lower` may know ASCII alone."""
    cases = {one, one.upper()} if len(one.upper()) == 1 else {one}
    codes = [rf"\\u{ord(case):04x}" for case in cases if ord(case) < 0x10000]
    return "(?:" + "|".join(sorted([*map(re.escape, cases), *codes])) + ")"


def erase_answers(
    *, owner_ids: Iterable[uuid.UUID], addresses: Sequence[str], using: str = "default"
) -> Counter[str]:
    """Erase a person from stored answers and dead events; return the rows changed by table.

    A row is the person's if it names an owner or an address. A repeated request then gets the erased answer.
    A key that contains the address is replaced, so it is no longer recognised. A dead event that was erased
    counts as discarded: nothing is left to replay.
    """
    named = [*map(str, owner_ids), *addresses]
    patterns = like_patterns(named)
    counts: Counter[str] = Counter()
    if not patterns:
        return counts
    with no_statement_timeout(using=using) as cursor:
        cursor.execute(
            f"SELECT scope, key, answer_body FROM {_ANSWERS} ORDER BY scope, key FOR UPDATE",  # noqa: S608
            [patterns, patterns],
        )
        for scope, key, body in cursor.fetchall():
            new_key, new_body = _new_key(key, addresses), _erase_body(body)
            if (new_key, new_body) != (key, body):
                cursor.execute(
                    "UPDATE idempotency_keys SET key = %s, answer_body = %s WHERE scope = %s AND key = %s",
                    [new_key, new_body, scope, key],
                )
                counts["idempotency_keys"] += 1
        cursor.execute(
            f"""
            UPDATE dead_events SET key = '', envelope = %s, error = %s,
                discarded_at = CASE WHEN replayed_at IS NULL
                    THEN coalesce(discarded_at, statement_timestamp()) ELSE discarded_at END
            WHERE id = ANY(ARRAY(SELECT id FROM {_DEAD_EVENTS} ORDER BY id FOR UPDATE))
            """,  # noqa: S608
            [ERASED, ERASED, _json_patterns(named)],
        )
        counts["dead_events"] += cursor.rowcount
    return counts


def export_answers(
    *, owner_ids: Iterable[uuid.UUID], addresses: Sequence[str], using: str = "default"
) -> dict[str, list[dict[str, Any]]]:
    """Collect the stored answers and the dead events that name an owner or an address, by table."""
    named = [*map(str, owner_ids), *addresses]
    patterns = like_patterns(named)
    found: dict[str, list[dict[str, Any]]] = {"idempotency_keys": [], "dead_events": []}
    with no_statement_timeout(using=using) as cursor:
        for table, rows, values in (
            ("idempotency_keys", _ANSWERS, [patterns, patterns]),
            ("dead_events", _DEAD_EVENTS, [_json_patterns(named)]),
        ):
            cursor.execute(f"SELECT * FROM {rows} ORDER BY 1, 2", values)  # noqa: S608
            names = [column.name for column in cursor.description or ()]
            found[table] = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return found


def _like(text: str) -> str:
    return re.sub(r"([%_\\])", r"\\\1", text)


def _new_key(key: str, addresses: Iterable[str]) -> str:
    named = any(address.lower() in key.lower() for address in addresses)
    return f"erased-{hashlib.sha256(key.encode()).hexdigest()}" if named else key


def _erase_body(body: str) -> str:
    try:
        document = json.loads(body)
    except ValueError:
        return body
    return json.dumps(_erase_value(document), ensure_ascii=False, separators=(",", ":"))


def _erase_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_erase_value(one) for one in value]
    if isinstance(value, dict):
        return {key: _erase_field(key, one) for key, one in value.items()}
    return value


def _erase_field(key: str, value: Any) -> Any:
    if key == "items":  # of an order: an item has a name too
        return value
    if key in _ANSWERED and isinstance(value, str):
        return _ANSWERED[key] if value else ""
    return _erase_value(value)
