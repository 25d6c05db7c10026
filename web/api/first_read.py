"""Authenticate a request, and find the answer that is stored for its Idempotency-Key, in one query.

This is the first statement of an API request. A token that is revoked later is found by the statement that
saves the work. So a change of an order with a key begins without a read if this process has just read its
token: the save finds a stored answer, too.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import json
import re
import time
import uuid

from django.conf import settings
from django.db import connection
from rest_framework.request import Request

from runtime.database.postgres.cursor import Prepared
from runtime.personal_data import key_hash
from web.api.headers import single_value
from web.api.problems import Problem, RequestFault, invalid
from web.models import ApiToken

HEADER = "Idempotency-Key"
_HEADER = "HTTP_IDEMPOTENCY_KEY"  # as WSGI names it
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"')  # RFC 8941's string
#: SQL: the token is neither revoked nor expired.
LIVE = "token.revoked_at IS NULL AND (token.expires_at IS NULL OR token.expires_at > statement_timestamp())"

#: SQL: the token has this digest, or had it before a rotation. It takes the digest twice.
HAS_DIGEST = (
    "(token.digest = %s OR token.previous_digest = %s AND token.previous_until > statement_timestamp())"
)


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
    """The token and the stored answer, at the database's time `now`."""

    token: ApiToken
    now: dt.datetime
    stored: StoredAnswer | None
    #: Whether it is from an earlier request: the token may have been revoked, and an answer may be stored.
    is_recalled: bool = False


def read_key(request: Request) -> str | None:
    """Return the hash of the caller's key, or None if there is none.

    Raise the 400 problem for a malformed key. A key may name a person (`order-of-ann@example.com`), which is
    why only its hash is stored. A bare key and the same key quoted as in RFC 8941 are equal.
    """
    header = request.META.get(_HEADER)
    if header is None:
        return None
    key = single_value(header.strip())
    if key.startswith('"'):
        quoted = _QUOTED.fullmatch(key)
        key = re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else ""
    if not _KEY.fullmatch(key):
        fault = RequestFault(
            (HEADER,), "A key has 1 to 255 visible ASCII characters, in quotes or bare.", "header"
        )
        raise invalid([fault])
    return key_hash(key)


def well_formed_key(request: Request) -> str | None:
    """Return the key's hash.

    Return None if it is missing or malformed; `read_key` refuses the latter later.
    """
    try:
        return read_key(request)
    except Problem:
        return None


#: How long a process uses a token that it has read.
RECALL_SECONDS = 5.0
MOST_RECALLED = 1000
#: The last read of each token, by digest, with the monotonic time of its answer.
_recent: dict[str, tuple[FirstRead, float]] = {}


def recall(digest: str) -> FirstRead | None:
    """Return the token if it was read a moment ago, and the database's time, without asking it."""
    read, read_at = _recent.get(digest, (None, 0.0))
    age = time.monotonic() - read_at
    if read is None or age >= RECALL_SECONDS:
        return None
    # Not by this host's clock, which somebody may set in between.
    return dataclasses.replace(read, now=read.now + dt.timedelta(seconds=age), is_recalled=True)


def forget() -> None:
    """Forget all tokens, as a new process does."""
    _recent.clear()


def read_first(*, digest: str, key: str | None = None) -> FirstRead | None:
    """Read the live token of `digest`, or return None.

    If `key` is given, also read the answer that is stored for the token's Idempotency-Key.
    """
    with connection.cursor() as cursor:
        if key is None:
            cursor.execute(_TOKEN, [digest, digest])
        else:
            cursor.execute(_TOKEN_AND_ANSWER, [settings.IDEMPOTENCY_DAYS, key, digest, digest])
        row = cursor.fetchone()
    if row is None:
        _recent.pop(digest, None)
        return None
    token_id, name, scopes, source, networks, now, *answer = row
    token = _token(token_id, name, scopes, source, networks)
    if len(_recent) >= MOST_RECALLED:
        _recent.clear()
    _recent[digest] = FirstRead(token, now, None), time.monotonic()
    return FirstRead(token, now, StoredAnswer(*answer) if answer and answer[0] is not None else None)


@functools.lru_cache(maxsize=256)
def _token(id: uuid.UUID, name: str, scopes: str, source: str, networks: str) -> ApiToken:
    """Return the columns as a token. All requests share the instance and must not change it."""
    return ApiToken.from_db(
        "default",
        ["id", "name", "scopes", "source", "networks"],
        [id, name, json.loads(scopes), source, json.loads(networks)],
    )


_COLUMNS = "token.id, token.name, token.scopes, token.source, token.networks, statement_timestamp()"
_TOKEN = Prepared(f"SELECT {_COLUMNS} FROM api_tokens AS token WHERE {HAS_DIGEST} AND {LIVE}")  # noqa: S608
_TOKEN_AND_ANSWER = Prepared(
    f"""
    SELECT {_COLUMNS}, stored.request_hash, stored.answer_status, stored.answer_body, stored.answer_location,
        stored.created_at <= statement_timestamp() - %s * interval '1 day'
    FROM api_tokens AS token
    LEFT JOIN idempotency_keys AS stored ON stored.scope = 'token:' || token.id AND stored.key = %s
    WHERE {HAS_DIGEST} AND {LIVE}
    """  # noqa: S608 - no values
)
