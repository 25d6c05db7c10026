"""The `Idempotency-Key` header: do a request's work once, however often the request comes.

The transaction that does the work stores the answer, so neither can exist without the other. Only answers of
success are stored: a refused or crashed request may be sent again with its key.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from django.conf import settings
from django.db import IntegrityError, connection, transaction
from django.http import HttpResponse
from rest_framework.request import Request

from outbox.api.first_read import LIVE, FirstRead, StoredAnswer
from outbox.api.problems import Fault, Problem, invalid
from outbox.core import context
from outbox.core.privacy import key_hash
from outbox.core.statement import Part
from outbox.models import ApiToken

if TYPE_CHECKING:
    from outbox.api.views import ApiView

HEADER = "Idempotency-Key"
_HEADER = "HTTP_IDEMPOTENCY_KEY"  # as WSGI names it
REPLAYED = "Idempotency-Replayed"

_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"')  # RFC 8941's string


class NothingWritten(Exception):
    """The statement of a change wrote nothing. It is open why: whoever holds the locks decides."""


class _TakenMeanwhile(Exception):
    """The key's first request committed between our snapshot and our lock."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Claim:
    """A caller's key, and the hash of the request that it came with."""

    scope: str
    key: str
    request_hash: str

    @property
    def lock(self) -> int:
        """Return the number of the key's advisory lock: 64 bits, signed."""
        digest = hashlib.sha256(f"{self.scope}\0{self.key}".encode()).digest()
        return int.from_bytes(digest[:8], signed=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Once:
    """What makes one statement do the work of a request once."""

    first_read: FirstRead
    _claim: _Claim | None

    @property
    def guard(self) -> Part:
        """Has a row while the token is live and the key's lock is ours. The lock ends with the statement."""
        token = self.first_read.token.id
        if self._claim is None:
            return Part((_LIVE_TOKEN,), [token])
        return Part((f"{_LIVE_TOKEN} AND pg_try_advisory_xact_lock(%s)",), [token, str(self._claim.lock)])

    def stored(self, response: HttpResponse) -> list[Part]:
        """Return the insert of the answer under its key, to come after the work. The key may be taken."""
        if self._claim is None:
            return []
        return [Part((_INSERT_AFTER,), _row(self._claim, response))]


_LIVE_TOKEN = f"SELECT 1 FROM api_tokens AS token WHERE token.id = %s AND {LIVE}"  # noqa: S608 - no values
_INSERT = """
    INSERT INTO idempotency_keys AS stored
        (scope, key, request_hash, answer_status, answer_body, answer_location)
"""
_INSERT_AFTER = f"{_INSERT} SELECT %s, %s, %s, %s, %s, %s {{source}} RETURNING 1"


def answer_change(
    *, view: ApiView, attempt: Callable[[Once], HttpResponse], work: Callable[[], HttpResponse]
) -> HttpResponse:
    """Answer with `attempt`, which writes all in one statement, or as `answer_once` with `work`.

    `attempt` relies on what `view` has read and takes no lock before it writes. It raises `NothingWritten` if
    something came between: then `work`, which locks what it reads, decides. Raise as `answer_once`, and
    `AuthenticationFailed` if the token was revoked meanwhile.
    """
    claim = _claim(view.request)
    with context.under_key(key_hash(claim.key) if claim else ""):
        try:
            stored = view.first_read.stored if claim else None
            if claim is not None and stored is not None and not stored.expired:
                return _replay(claim, stored)
            if stored is None:
                return _attempt(attempt, Once(view.first_read, claim))
        except NothingWritten:
            view.read_again()
        return work() if claim is None else _answer(claim, work)


def _attempt(attempt: Callable[[Once], HttpResponse], once: Once) -> HttpResponse:
    try:
        return attempt(once)
    except IntegrityError as error:
        broken = getattr(getattr(error.__cause__, "diag", None), "constraint_name", None)
        if broken != "idempotency_keys_pkey" or connection.in_atomic_block:
            raise
        raise NothingWritten from error


def answer_once(*, request: Request, work: Callable[[], HttpResponse]) -> HttpResponse:
    """Do `work` and store its answer, or return the answer that is stored for the key.

    Without the header only do `work`. An error of `work` rolls back and stores nothing. Raise `Problem`: 400
    for a malformed key, 409 while the key's first request runs, 422 if another request had the key.
    """
    claim = _claim(request)
    if claim is None:
        return work()
    with context.under_key(key_hash(claim.key)):
        return _answer(claim, work)


def _claim(request: Request) -> _Claim | None:
    header = request.META.get(_HEADER)
    if header is None:
        return None
    assert isinstance(request.auth, ApiToken)
    return _Claim(f"token:{request.auth.id}", _read_key(header), _hash(request))


def _answer(claim: _Claim, work: Callable[[], HttpResponse]) -> HttpResponse:
    try:
        return _answer_locked(claim, work)
    except _TakenMeanwhile:
        return _answer_locked(claim, work)  # sees the row now, so a third try is never needed


def _answer_locked(claim: _Claim, work: Callable[[], HttpResponse]) -> HttpResponse:
    with transaction.atomic(durable=True):
        stored = _look(claim)
        if stored is not None:
            return stored
        response = work()
        _store(claim, response)
        return response


def _look(claim: _Claim) -> HttpResponse | None:
    """Take the key's lock if it is free, and read the stored answer, in one statement."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT pg_try_advisory_xact_lock(%s),
                   stored.request_hash, stored.answer_status, stored.answer_body, stored.answer_location
            FROM (VALUES (1)) AS one LEFT JOIN idempotency_keys AS stored
              ON stored.scope = %s AND stored.key = %s AND stored.created_at > now() - %s * interval '1 day'
            """,
            [claim.lock, claim.scope, claim.key, settings.IDEMPOTENCY_DAYS],
        )
        mine, request_hash, status, body, location = cursor.fetchone()
    if request_hash is not None:
        return _replay(claim, StoredAnswer(request_hash, status, body, location, expired=False))
    if not mine:
        raise Problem(
            status=409,
            slug="idempotency-in-progress",
            title="The first request with this key is not done yet",
            detail=f"A request with this {HEADER} is being worked on. Send it again in a moment.",
            headers={"Retry-After": "1"},
        )
    return None


def _replay(claim: _Claim, stored: StoredAnswer) -> HttpResponse:
    if stored.request_hash != claim.request_hash:
        raise Problem(
            status=422,
            slug="idempotency-key-reused",
            title="The key belongs to another request",
            detail=f"This {HEADER} was used with another method, path or body.",
        )
    headers = {REPLAYED: "true"} | ({"Location": stored.location} if stored.location else {})
    return HttpResponse(stored.body, "application/json", stored.status, headers=headers)


def _store(claim: _Claim, response: HttpResponse) -> None:
    """Insert the answer, or put it in place of one that is too old to count."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            {_INSERT} VALUES (%s, %s, %s, %s, %s, %s)
            ON CONFLICT (scope, key) DO UPDATE SET
                request_hash = excluded.request_hash, answer_status = excluded.answer_status,
                answer_body = excluded.answer_body, answer_location = excluded.answer_location,
                created_at = statement_timestamp()
            WHERE stored.created_at <= now() - %s * interval '1 day'
            RETURNING 1
            """,
            [*_row(claim, response), settings.IDEMPOTENCY_DAYS],
        )
        if cursor.fetchone() is None:
            raise _TakenMeanwhile


def _row(claim: _Claim, response: HttpResponse) -> list[str]:
    return [
        claim.scope,
        claim.key,
        claim.request_hash,
        str(response.status_code),
        response.content.decode(),
        response.headers.get("Location", ""),
    ]


def well_formed_key(request: Request) -> str | None:
    """Return the caller's key; None without one, or for a malformed one, which is refused later."""
    header = request.META.get(_HEADER)
    try:
        return None if header is None else _read_key(header)
    except Problem:
        return None


def _read_key(header: str) -> str:
    """Read the header's value: bare, or quoted as RFC 8941 has it, which means the same."""
    key = header.strip()
    if key.startswith('"'):
        quoted = _QUOTED.fullmatch(key)
        key = re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else ""
    if not _KEY.fullmatch(key):
        fault = Fault((HEADER,), "A key has 1 to 255 visible ASCII characters, in quotes or bare.", "header")
        raise invalid([fault])
    return key


def _hash(request: Request) -> str:
    """Hash what makes two requests the same; white space and the order of a body's fields do not count."""
    body = json.dumps(request.data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{request.method} {request.path}\n{body}".encode()).hexdigest()
