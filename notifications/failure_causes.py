"""Group dead letters by the cause of their last error, when somebody reads the groups."""

from __future__ import annotations

import dataclasses
import re
import uuid

from django.db import connections
from django.db.models import CharField
from django.db.models.expressions import RawSQL

from notifications.models import EmailNotification
from notifications.states.transitions import TRIED
from runtime.binding import UNBOUND, Binding

#: The groups are of so many dead letters, the newest ones.
COUNT_LIMIT = 10_000
#: A status code at the beginning, with an enhanced one (RFC 3463) such as 5.1.1. It belongs to the cause.
_CODES = r"^[0-9]{3}(?:[ -][245]\.[0-9]{1,3}\.[0-9]{1,3})?"
#: A word that differs between errors of one cause, because it has a digit, an @, or a dot inside: a number,
#: id, time, address, or host.
_WORD = r"""[^][\s<>(){},;='"]*(?:[0-9@]|\w\.\w)[^][\s<>(){},;='"]*"""
_TRIED = ", ".join(f"'{reason.value}'" for reason in TRIED)
#: The cause of a row that was tried: a hash of the provider and of the error without such words. Of another
#: one, what ended it.
_CAUSE = f"""
    left(md5(CASE WHEN ended_by NOT IN ({_TRIED}) THEN ended_by ELSE
    provider || ' ' || coalesce(substring(last_error FROM $re${_CODES}$re$), '') || regexp_replace(
        regexp_replace(last_error, $re${_CODES}$re$, ''), $re${_WORD}(?:\\s+{_WORD})*$re$, '#', 'g') END), 16)
"""


@dataclasses.dataclass(frozen=True, slots=True)
class FailureCause:
    """A group of dead letters, with its oldest and newest id."""

    cause: str
    count: int
    oldest: uuid.UUID
    newest: uuid.UUID


def error_code(error: str) -> str:
    """Return the status code at an error's beginning ("550 5.1.1", "400"), or an empty text."""
    code = re.match(_CODES, error)
    return code[0] if code else ""


def cause_of_row() -> RawSQL:
    """Return the expression of a row's cause, for a filter."""
    return RawSQL(_CAUSE, [], output_field=CharField())  # noqa: S611 - only constants


def dead_causes(shops: Binding = UNBOUND) -> list[FailureCause]:
    """Return the causes of the shops' newest `COUNT_LIMIT` dead letters, the most frequent first."""
    is_theirs, values = (
        ("", []) if shops.sources is None else (" AND source = ANY(%s)", [sorted(shops.sources)])
    )
    with connections[EmailNotification.objects.db].cursor() as cursor:
        cursor.execute(
            f"""
            SELECT cause, count(*), (array_agg(id ORDER BY id))[1], (array_agg(id ORDER BY id DESC))[1]
            FROM (
                SELECT id, {_CAUSE} AS cause FROM email_notifications
                WHERE status = 'dead_lettered'{is_theirs} ORDER BY id DESC LIMIT {COUNT_LIMIT}
            ) AS dead
            GROUP BY cause ORDER BY count(*) DESC, cause
            """,  # noqa: S608 - only constants are inserted
            values,
        )
        return [FailureCause(*row) for row in cursor.fetchall()]
