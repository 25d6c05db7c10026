"""Admit requests to the application, and refuse new work early while the machine cannot keep up.

Granian has more threads than requests that may work at a time. A request waits here, where its wait is known,
and not in Granian's own queue, of which Python learns nothing (docs/adr/0040). A slot owns the database
connections, and the threads need no more of them.

Only a POST of the API is refused: its client repeats it with its key. Every other request waits for a slot
however long. That includes the providers' webhooks. A provider would repeat a refused one after minutes, and
its e-mail's hold would last so long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.http import HttpRequest, HttpResponseBase

from runtime.process.slots import MOST_WAITING, Overloaded, RequestSlots
from web.api.problems import overloaded
from web.metrics import REQUESTS

#: The key in the environment of a refused request. No header can have this name.
REFUSED = "orderpost.refused"
#: The paths that need neither a slot nor a database: a liveness probe must never wait for one.
FREE = frozenset(["/healthz"])

Application = Callable[[dict[str, Any], Any], Any]
#: The open connections of a slot, by alias.
Connections = dict[str, BaseDatabaseWrapper]


class Admission:
    """A WSGI application that lets `slots` requests at a time into another one."""

    def __init__(self, application: Application, *, slots: int) -> None:
        self._application = application
        self.slots: RequestSlots[Connections] = RequestSlots(
            [{} for _ in range(slots)], most_waiting=MOST_WAITING
        )

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        path = environ["PATH_INFO"]
        if path in FREE:
            return self._application(environ, start_response)
        began = time.perf_counter()
        is_new_work = environ["REQUEST_METHOD"] in ("POST", "PATCH") and path.startswith("/api/")
        try:
            held = self.slots.take(is_refusable=is_new_work)
        except Overloaded as refusal:
            environ[REFUSED] = refusal.retry_seconds
            answer = _Answer(self._application(environ, start_response), leave=lambda: None)
            REQUESTS.labels("refused", 503).observe(time.perf_counter() - began)
            return answer.whole()
        _lend(held)
        try:
            answer = _Answer(self._application(environ, start_response), leave=self._leave)
        except BaseException:
            self._leave()
            raise
        # A streamed body may read the database until the server closes it.
        return answer if getattr(answer.body, "streaming", True) else answer.whole()

    def _leave(self) -> None:
        self.slots.give(_take_back())


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
    """Answer the requests that `Admission` refused."""

    def answer(request: HttpRequest) -> HttpResponseBase:
        seconds = request.META.get(REFUSED)
        if seconds is None:
            return get_response(request)
        response = overloaded(retry_seconds=seconds).response(request)
        # Django would log an error for each of thousands, and send it to Sentry.
        response._has_been_logged = True  # type: ignore[attr-defined]
        return response

    return answer
