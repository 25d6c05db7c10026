"""Admit requests to the application, and refuse new work early while the machine cannot keep up.

Granian has more threads than requests that may work at a time. A request waits here, where its wait is known,
and not in Granian's own queue, of which Python learns nothing (docs/adr/0040). A slot owns the database
connections, and the threads need no more of them.

Only a POST of the API with a live token is refused because others wait: its client repeats it with its key.
Pages of the admin, webhooks and strangers have a queue of their own, which refuses no order. It is bounded,
so that threads remain for orders and for the liveness probe.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.http import HttpRequest, HttpResponseBase

from runtime.process.slots import MOST_OTHERS_WAITING, MOST_WAITING, Overloaded, RequestSlots
from web.api.problems import Problem, length_required, overloaded
from web.front.callers import API, Caller
from web.metrics import REQUESTS

#: The key in the environment of the `Problem` of a refused request. No header can have this name.
REFUSED = "orderpost.refused"
#: While so many callers without a token wait for a slot, no stranger does.
MOST_STRANGERS_WAITING = MOST_OTHERS_WAITING // 2

Application = Callable[[dict[str, Any], Any], Any]
#: The open connections of a slot, by alias.
Connections = dict[str, BaseDatabaseWrapper]


class Admission:
    """Calls a WSGI application for `slots` requests at a time."""

    def __init__(self, application: Application, *, slots: int) -> None:
        self._application = application
        self.slots: RequestSlots[Connections] = RequestSlots(
            [{} for _ in range(slots)], most_waiting=MOST_WAITING
        )

    def __call__(self, environ: dict[str, Any], start_response: Any, *, caller: Caller) -> Any:
        """Answer a request in a slot, or an order with a refusal.

        Raise `Overloaded` if too many callers without a token wait.
        """
        began = time.perf_counter()
        is_other = caller is not Caller.TOKEN
        try:
            held = self._take(caller, is_refusable=environ["REQUEST_METHOD"] in ("POST", "PATCH"))
        except Overloaded as refusal:
            if is_other:
                raise
            problem = overloaded(retry_seconds=refusal.retry_seconds)
            return self.refuse(environ, start_response, problem, began=began)

        def leave() -> None:
            self._leave(is_other=is_other)

        _lend(held)
        try:
            answer = _Answer(self._application(environ, start_response), leave=leave)
        except BaseException:
            leave()
            raise
        # A streamed body may read the database until the server closes it.
        return answer if getattr(answer.body, "streaming", True) else answer.whole()

    def answer_without_slot(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        """Answer a request that needs no database."""
        return _Answer(self._application(environ, start_response), leave=lambda: None).whole()

    def refuse(
        self, environ: dict[str, Any], start_response: Any, problem: Problem, *, began: float
    ) -> list[bytes]:
        """Answer with the problem. Only the outer middleware sees the request."""
        environ[REFUSED] = problem
        answer = self.answer_without_slot(environ, start_response)
        REQUESTS.labels("refused", problem.type.status).observe(time.perf_counter() - began)
        return answer

    @contextlib.contextmanager
    def slot_of_stranger(self) -> Iterator[None]:
        """Have the database connections of a slot within the block. Raise `Overloaded`."""
        _lend(self._take(Caller.STRANGER, is_refusable=False))
        try:
            yield
        finally:
            self._leave(is_other=True)

    def _take(self, caller: Caller, *, is_refusable: bool) -> Connections:
        if caller is Caller.TOKEN:
            return self.slots.take(is_refusable=is_refusable)
        is_stranger = caller is Caller.STRANGER
        most = MOST_STRANGERS_WAITING if is_stranger else MOST_OTHERS_WAITING
        return self.slots.take_as_other(most_waiting=most)

    def _leave(self, *, is_other: bool) -> None:
        self.slots.give(_take_back(), is_other=is_other)


class _Answer:
    """A body whose `close` leaves the slot."""

    def __init__(self, body: Any, *, leave: Callable[[], None]) -> None:
        self.body = body
        self._leave = leave

    def whole(self) -> list[bytes]:
        """Return the body, to which Granian adds its length, and close it."""
        try:
            return [*self.body]
        finally:
            self.close()

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.body)

    def close(self) -> None:
        try:
            if hasattr(self.body, "close"):
                self.body.close()
        finally:
            self._leave()


def _lend(held: Connections) -> None:
    for alias, connection in held.items():
        connections[alias] = connection


def _take_back() -> Connections:
    """Remove the thread's connections, and let other threads use them."""
    held = {connection.alias: connection for connection in connections.all(initialized_only=True)}
    for alias, connection in held.items():
        if not connection.allow_thread_sharing:
            connection.inc_thread_sharing()
        del connections[alias]
    return held


def refusals_first(
    get_response: Callable[[HttpRequest], HttpResponseBase],
) -> Callable[[HttpRequest], HttpResponseBase]:
    """Answer the requests that `Admission.refuse` refuses, and those in chunks."""

    def answer(request: HttpRequest) -> HttpResponseBase:
        problem = request.META.get(REFUSED)
        if problem is None:
            # The API's views refuse theirs themselves.
            if "HTTP_TRANSFER_ENCODING" not in request.META or request.path_info.startswith(API):
                return get_response(request)
            problem = length_required()
        response: HttpResponseBase = problem.response(request)
        # Django would log an error for each of thousands, and send it to Sentry.
        response._has_been_logged = True  # type: ignore[attr-defined]
        return response

    return answer
