"""A request's first statement: read its token, the answer stored under its key, and rows for its view."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import json
import re
import uuid
from typing import Any

from django.conf import settings
from django.db import connection
from rest_framework.request import Request

from runtime.database.postgres.cursor import Prepared
from runtime.database.row_change import JoinedRead
from runtime.personal_data import key_hash
from web.api.headers import single_value
from web.api.problems import Fault, Problem, invalid
from web.models import ApiToken

HEADER = "Idempotency-Key"
_HEADER = "HTTP_IDEMPOTENCY_KEY"  # as WSGI names it
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"')  # RFC 8941's string
#: Of `api_tokens AS token`: neither revoked nor expired.
LIVE = "token.revoked_at IS NULL AND (token.expires_at IS NULL OR token.expires_at > statement_timestamp())"


@dataclasses.dataclass(frozen=True, slots=True)
class StoredAnswer:
    """The answer to the first request with the caller's key. An expired one does not count."""

    request_hash: str
    status: int
    body: str
    location: str
    is_expired: bool


@dataclasses.dataclass(frozen=True, slots=True)
class FirstRead:
    """The rows at the database's time `now`. `joined` is what `JoinedRead.make` returned, or None."""

    token: ApiToken
    now: dt.datetime
    stored: StoredAnswer | None
    joined: Any


def read_key(request: Request) -> str | None:
    """Return the hash of the caller's key, or None without one. Raise the 400 problem for a malformed key.

    Only the hash is stored, because a key may name a person, such as `order-of-ann@example.com`.

    A bare key and the same key quoted as in RFC 8941 are equal.
    """
    header = request.META.get(_HEADER)
    if header is None:
        return None
    key = single_value(header.strip())
    if key.startswith('"'):
        quoted = _QUOTED.fullmatch(key)
        key = re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else ""
    if not _KEY.fullmatch(key):
        fault = Fault((HEADER,), "A key has 1 to 255 visible ASCII characters, in quotes or bare.", "header")
        raise invalid([fault])
    return key_hash(key)


def well_formed_key(request: Request) -> str | None:
    """Return the key's hash, or None without one or for a malformed one, which `read_key` refuses later."""
    try:
        return read_key(request)
    except Problem:
        return None


def read_first(*, digest: str, key: str | None = None, joined: JoinedRead | None = None) -> FirstRead | None:
    """Read the live token of `digest`, or return None.

    With `key`, also read the answer that is stored for the token's Idempotency-Key.
    """
    values = [digest] if joined is None else [*joined.values, digest]
    if key is not None:
        values = [settings.IDEMPOTENCY_DAYS, key, *values]
    texts = ("", "") if joined is None else (joined.columns, joined.joins)
    with connection.cursor() as cursor:
        cursor.execute(_text(key is not None, *texts), values)
        found = cursor.fetchone()
    if found is None:
        return None
    token_id, name, scopes, source, now, *rest = found
    token = _token(token_id, name, scopes, source)
    stored = None
    if key is not None:
        if rest[0] is not None:
            stored = StoredAnswer(*rest[:5])
        rest = rest[5:]
    return FirstRead(token, now, stored, None if joined is None else joined.make(now, rest))


@functools.lru_cache(maxsize=256)
def _token(id: uuid.UUID, name: str, scopes: str, source: str) -> ApiToken:
    """Return the columns as a token. All requests share the instance, so nobody may change it."""
    return ApiToken.from_db(
        "default", ["id", "name", "scopes", "source"], [id, name, json.loads(scopes), source]
    )


@functools.cache
def _text(with_key: bool, joined_columns: str, joined: str) -> Prepared:
    columns = ["token.id, token.name, token.scopes, token.source, statement_timestamp()"]
    joins = []
    if with_key:
        columns.append(
            "stored.request_hash, stored.answer_status, stored.answer_body, stored.answer_location,"
            " stored.created_at <= statement_timestamp() - %s * interval '1 day'"
        )
        joins.append(
            "LEFT JOIN idempotency_keys AS stored ON stored.scope = 'token:' || token.id AND stored.key = %s"
        )
    if joined:
        columns.append(joined_columns)
        joins.append(joined)
    return Prepared(
        f"SELECT {', '.join(columns)} FROM api_tokens AS token {' '.join(joins)}"  # noqa: S608 - no values
        f" WHERE token.digest = %s AND {LIVE}"
    )
