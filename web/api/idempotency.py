"""Do a request's work once for each `Idempotency-Key`, however often the client sends the request.

A key leads to the stored answer of the first successful request, which is sent again word for word. The
answer is stored in the transaction that does the work: either both exist or neither. A refused or crashed
request stores nothing, and the client may send it again with its key.

1. Authentication reads the token and, in the same query, the stored answer (`first_read`). A change of an
   order leaves that out if the process has just read the token.
2. If there is none, `answer_once` does the work and saves it together with the answer.
3. An equal request, then or later, waits for the order's lock, or for the first one's key to commit. Then it
   is refused or violates the key's primary key, and finds the stored answer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator

from django.conf import settings
from django.db import DataError, IntegrityError, OperationalError, connection, transaction
from django.http import HttpResponse
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from runtime.database.away import is_lock_timeout
from runtime.database.save import MOST_WAITING, broken_constraint, has_failed_check, save_together
from runtime.personal_data import hashes_in
from runtime.process import cached_rows
from runtime.telemetry import context
from web.api.first_read import HAS_DIGEST, HEADER, LIVE, FirstRead, read_key
from web.api.problem_types import IDEMPOTENCY_IN_PROGRESS, IDEMPOTENCY_KEY_REUSED
from web.api.problems import Problem
from web.api.views import ApiView
from web.models import IdempotencyKey

REPLAYED = "Idempotency-Replayed"
_LIVE_TOKEN = f"EXISTS (SELECT FROM api_tokens AS token WHERE token.id = %s AND {HAS_DIGEST} AND {LIVE})"


def answer_once(*, view: ApiView, work: Callable[[], tuple[HttpResponse, uuid.UUID]]) -> HttpResponse:
    """Do `work` in a transaction and store its answer, or return the answer that is stored for the key.

    `work` returns the answer and the id of the order that it is about, by which an erasure finds it.
    An error of `work` rolls back and stores nothing. Raise the problems of `IdempotentRequest`.
    """
    request, is_recalled = IdempotentRequest(view), view.first_read.is_recalled
    if (stored := request.replay(view.first_read)) is not None:
        return stored
    cached_rows.load()  # the work must read nothing while it holds a lock
    try:
        with request.in_progress(), request.taking_key(), transaction.atomic(durable=True):
            answer, order_id = work()
            # The token may have been revoked since it was read.
            rows = request.rows(answer, order_id)
            token = (view.first_read.token.id, view.digest, view.digest)
            save_together(*rows, check=_LIVE_TOKEN, values=token)
        return answer
    except (Problem, OperationalError) as error:  # an equal request may have been first
        is_refused = isinstance(error, Problem) or is_lock_timeout(error)
        if is_refused and (stored := request.first_answer()) is not None:
            return stored
        if is_recalled and request.has_freed_key:
            return answer_once(view=view, work=work)
        raise


class IdempotentRequest:
    """A request that must have its effect once. Without a key, every request counts as the first."""

    def __init__(self, view: ApiView) -> None:
        """Raise the 400 problem for a malformed key."""
        self._view = view
        self._scope = f"token:{view.first_read.token.id}"
        self.key = read_key(view.request)
        self._is_worked = False
        #: Whether an expired answer had the key.
        self.has_freed_key = False

    def replay(self, read: FirstRead) -> HttpResponse | None:
        """Return the answer that `read` found under the key. Delete an expired one and return None.

        Raise the 422 problem if the answer belongs to another request.
        """
        stored = read.stored
        if stored is None:
            return None
        if stored.is_expired:
            self._delete_expired()
            self.has_freed_key = True
            return None
        if stored.request_hash != self._request_hash:
            raise Problem(
                IDEMPOTENCY_KEY_REUSED,
                detail=f"This {HEADER} was used with another method, path or body. Use a new one.",
            )
        headers = {REPLAYED: "true"} | ({"Location": stored.location} if stored.location else {})
        return HttpResponse(stored.body, "application/json", stored.status, headers=headers)

    @contextlib.contextmanager
    def in_progress(self) -> Iterator[None]:
        """Mark the request's work as in progress, and its events with the key's hash.

        Raise the 409 problem if enough equal requests wait.
        """
        if self.key is None:
            yield
            return
        place = self._scope, self.key
        with _guard:
            if _counts[place] > MOST_WAITING:
                raise self._conflict()
            _counts[place] += 1
        try:
            with context.working_for(dataclasses.replace(context.current(), idempotency_key=self.key)):
                yield
        finally:
            with _guard:
                _counts[place] -= 1
                if not _counts[place]:
                    del _counts[place]

    def rows(self, answer: HttpResponse, order_id: uuid.UUID) -> list[IdempotencyKey]:
        """Return the answer of the work under the key, to be saved with it.

        It must be inserted and not updated: if another request took the key, the insert fails and undoes the
        work.
        """
        self._is_worked = True
        if self.key is None:
            return []
        body = answer.content.decode()
        return [
            IdempotencyKey(
                scope=self._scope,
                key=self.key,
                request_hash=self._request_hash,
                answer_status=answer.status_code,
                answer_body=body,
                answer_location=answer.headers.get("Location", ""),
                order_id=order_id,
                address_hashes=hashes_in(body),
            )
        ]

    @contextlib.contextmanager
    def taking_key(self) -> Iterator[None]:
        """Enclose the transaction of the work, whose end saves it.

        Raise the 409 problem if an equal request took the key first, or holds it for too long. Raise
        `AuthenticationFailed` if the token is not live any more.
        """
        try:
            yield
        except IntegrityError as error:
            if broken_constraint(error) != "idempotency_keys_pkey":
                raise
            raise self._conflict() from error
        except OperationalError as error:  # the work has its lock then, so only the key can be waited for
            if self.key is None or not self._is_worked or not is_lock_timeout(error):
                raise
            raise self._conflict() from error
        except DataError as error:
            if not has_failed_check(error):
                raise
            raise AuthenticationFailed("This token has just expired or been revoked.") from error

    def first_answer(self) -> HttpResponse | None:
        """Return the answer of an equal request that was first, or None.

        Raise `AuthenticationFailed` if the token was revoked.
        """
        return None if self.key is None else self.replay(self._view.read_again())

    @functools.cached_property
    def _request_hash(self) -> str:
        return _hash(self._view.request)

    def _conflict(self) -> Problem:
        return Problem(
            IDEMPOTENCY_IN_PROGRESS,
            detail=f"A request with this {HEADER} is being worked on. Send it again in a moment.",
            headers={"Retry-After": "1"},
        )

    def _delete_expired(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                """
                DELETE FROM idempotency_keys WHERE scope = %s AND key = %s
                    AND created_at <= statement_timestamp() - %s * interval '1 day'
                """,
                [self._scope, self.key, settings.IDEMPOTENCY_DAYS],
            )


_guard = threading.Lock()
#: The number of requests of this process that work, or wait to work, under a key.
_counts: Counter[tuple[str, str]] = Counter()


def _hash(request: Request) -> str:
    """Hash a request's method, path and body. Ignore white space and the order of the body's fields."""
    body = json.dumps(request.data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{request.method} {request.path}\n{body}".encode()).hexdigest()
