"""Do a request's work once for each `Idempotency-Key`, however often the client sends the request.

web.api.first_read looks up the key, with the token, in the request's first statement. The transaction that
does the work stores the answer, so neither can exist without the other. It stores only successful answers, so
a client may send a refused or crashed request again with its key.

A request writes only while it holds its key's advisory lock, which its transaction releases at its end.
Another request with the key finds either the lock taken or the stored answer. If the answer was stored after
the other request had read, the order's changed row or the key's primary key stops its write.
orders.api.changing does the work and stores the answer in one statement. `answer_once` is for work that takes
several statements.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterator

from django.conf import settings
from django.db import IntegrityError, connection, transaction
from django.http import HttpResponse
from rest_framework.request import Request

from runtime.database.row_change import broken_constraint
from runtime.database.statement import StatementPart, execute
from runtime.telemetry import context
from web.api.first_read import HEADER, LIVE, FirstRead, read_key
from web.api.problem_types import IDEMPOTENCY_IN_PROGRESS, IDEMPOTENCY_KEY_REUSED
from web.api.problems import Problem
from web.api.views import ApiView

REPLAYED = "Idempotency-Replayed"


class KeyTaken(Exception):
    """Nothing was written, because another request has the key, or because the token was revoked."""


class IdempotentRequest:
    """A request that must have its effect once. Without a key, every request counts as the first."""

    def __init__(self, view: ApiView) -> None:
        """Raise the 400 problem for a malformed key."""
        self._view = view
        self._token = view.first_read.token.id
        self._scope = f"token:{self._token}"
        self.key = read_key(view.request)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Add the key to the block's events. Raise `KeyTaken` if the block stores a second answer."""
        try:
            with context.working_for(dataclasses.replace(context.current(), idempotency_key=self.key or "")):
                yield
        except IntegrityError as error:
            if broken_constraint(error) != "idempotency_keys_pkey" or connection.in_atomic_block:
                raise
            raise KeyTaken from error

    def replay(self, read: FirstRead) -> HttpResponse | None:
        """Return the answer that `read` found under the key. Delete an expired one and return None.

        Raise the 422 problem if the answer belongs to another request.
        """
        stored = read.stored
        if stored is None:
            return None
        if stored.is_expired:
            self._delete_expired()
            return None
        if stored.request_hash != self._request_hash:
            raise Problem(
                IDEMPOTENCY_KEY_REUSED,
                detail=f"This {HEADER} was used with another method, path or body. Use a new one.",
            )
        headers = {REPLAYED: "true"} | ({"Location": stored.location} if stored.location else {})
        return HttpResponse(stored.body, "application/json", stored.status, headers=headers)

    def first_answer(self) -> HttpResponse:
        """Return the stored answer of the request that has the key. Call it after `KeyTaken`.

        Raise the 409 problem if no answer is stored yet, or `AuthenticationFailed` if the token was revoked.
        """
        answer = self.replay(self._view.read_again())
        if answer is None:
            raise Problem(
                IDEMPOTENCY_IN_PROGRESS,
                detail=f"A request with this {HEADER} is being worked on. Send it again in a moment.",
                headers={"Retry-After": "1"},
            )
        return answer

    @property
    def guard(self) -> StatementPart:
        """Return a query that has a row if the token is live and this session gets the key's lock."""
        if self.key is None:
            return StatementPart((_LIVE_TOKEN,), [self._token])
        digest = hashlib.sha256(f"{self._scope}\0{self.key}".encode()).digest()
        lock = int.from_bytes(digest[:8], signed=True)
        return StatementPart((f"{_LIVE_TOKEN} AND pg_try_advisory_xact_lock(%s)",), [self._token, str(lock)])

    def stored(self, response: HttpResponse) -> list[StatementPart]:
        """Return the insert of the answer under the key.

        It is a plain INSERT, so that a taken key aborts the whole statement. PostgreSQL executes all parts of
        a WITH, so ON CONFLICT would save the work without its answer.
        """
        if self.key is None:
            return []
        body, location = response.content.decode(), response.headers.get("Location", "")
        row = [self._scope, self.key, self._request_hash, str(response.status_code), body, location]
        return [StatementPart((_INSERT,), row)]

    @functools.cached_property
    def _request_hash(self) -> str:
        return _hash(self._view.request)

    def _delete_expired(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                """
                DELETE FROM idempotency_keys WHERE scope = %s AND key = %s
                    AND created_at <= statement_timestamp() - %s * interval '1 day'
                """,
                [self._scope, self.key, settings.IDEMPOTENCY_DAYS],
            )


_LIVE_TOKEN = f"SELECT 1 FROM api_tokens AS token WHERE token.id = %s AND {LIVE}"  # noqa: S608 - no values
_INSERT = """
    INSERT INTO idempotency_keys (scope, key, request_hash, answer_status, answer_body, answer_location)
    SELECT %s, %s, %s, %s, %s, %s {source} RETURNING 1
"""


def answer_once(*, view: ApiView, work: Callable[[], HttpResponse]) -> HttpResponse:
    """Do `work` in a transaction and store its answer, or return the answer that is stored for the key.

    An error of `work` rolls back and stores nothing. Raise the problems of `IdempotentRequest`.
    """
    idempotent = IdempotentRequest(view)
    try:
        with idempotent.working(), transaction.atomic(durable=True):
            if not execute(guard=idempotent.guard, inserts=[]).has_guard:
                raise KeyTaken
            answer = idempotent.replay(view.read_again())
            if answer is None:
                answer = work()
                if inserts := idempotent.stored(answer):
                    execute(inserts=inserts)
            return answer
    except KeyTaken:
        return idempotent.first_answer()


def _hash(request: Request) -> str:
    """Hash a request's method, path and body. Ignore white space and the order of the body's fields."""
    body = json.dumps(request.data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{request.method} {request.path}\n{body}".encode()).hexdigest()
