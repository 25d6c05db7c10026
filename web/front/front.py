"""Answer Granian's requests: read a body, let a request wait, refuse it, or have it answered in a slot.

Granian calls `Front.take` in one of its threads when a request's headers are here. A body is read without a
thread, and `_Asked` goes on in another one when all of it is here. `tick` ends what takes too long.
"""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import structlog
from django.conf import settings
from django.db import DatabaseError, InterfaceError
from django.http.request import HttpHeaders

from runtime.process.slots import Overloaded
from runtime.telemetry import context
from web.api.correlation import HEADER
from web.api.problem_types import OVERLOADED, TOO_SLOW
from web.api.problems import CONTENT_TYPE, Problem
from web.front import callers
from web.front.admission import Admission
from web.front.callers import Caller
from web.front.environ import make_environ
from web.front.places import Answer, Places
from web.front.posts import SIGNED_POSTS
from web.front.streams import send_stream
from web.metrics import REQUESTS

log = structlog.get_logger(__name__)

#: How long a whole body may take.
BODY_SECONDS = 5.0
#: How often `tick` is called.
TICK_SECONDS = 0.25
#: The path that needs neither a slot nor a database: a liveness probe must never wait for one.
PROBE = "/healthz"
#: Paths for the inside of the network, which are not refused while strangers wait.
INSIDE = frozenset(["/readyz", "/metrics"])
_CLOSE = ("connection", "close")
_REFUSAL = json.dumps(
    {
        "type": f"urn:orderpost:problem:{OVERLOADED.slug}",
        "title": OVERLOADED.title,
        "status": OVERLOADED.status,
        "detail": "Too many requests without a valid token or session come. Nothing was changed.",
        "help": f"/api/problems/{OVERLOADED.slug}",
    }
).encode()


class _Asked:
    """A request that has no answer yet. `place` is the name of the stranger's place that it has."""

    __slots__ = ("began", "caller", "environ", "is_unread", "length", "place", "proto")

    def __init__(self, proto: Any, environ: dict[str, Any]) -> None:
        self.proto, self.environ = proto, environ
        self.began = time.perf_counter()
        self.is_unread = "HTTP_TRANSFER_ENCODING" in environ
        self.caller = Caller.STRANGER
        self.place = ""
        length = environ.get("CONTENT_LENGTH", "")
        self.length = int(length) if length.isascii() and length.isdecimal() else 0
        self.is_unread |= self.length > 0


class Front:
    """The requests of a process, from their headers to their answers."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.places: Places[_Asked] = Places()
        #: The requests whose bodies are read, oldest first: Granian's future of the body, and until when.
        self._reading: dict[_Asked, tuple[Any, float]] = {}
        self._is_closed = False

    def take(self, watcher: Any) -> None:
        """Begin with a request. It is answered here, or later in another thread."""
        try:
            self._begin(_Asked(watcher.proto, make_environ(watcher.scope)))
        except BaseException:  # Granian would neither show nor clear it
            log.exception("a request was not answered")

    def keep_time(self, stopped: threading.Event) -> None:
        """End what takes too long, until `stopped` is set."""
        while not stopped.wait(TICK_SECONDS):
            self.tick()

    def tick(self) -> None:
        """End the bodies and the waits whose time is over."""
        now = time.monotonic()
        for asked in self.places.expire():
            self._refuse_stranger(asked)
        for asked, (body, until) in list(self._reading.items()):
            if until <= now or (self._is_closed and asked.place):
                body.cancel()  # which calls `_go_on`

    def close(self) -> None:
        """Refuse strangers from now on, so that a stop waits for none of them."""
        self._is_closed = True
        self.places.close()

    def _begin(self, asked: _Asked) -> None:
        environ = asked.environ
        if environ["PATH_INFO"] == PROBE:
            self._send(asked, self.admission.answer_without_slot)
        elif "HTTP_TRANSFER_ENCODING" in environ and not environ["PATH_INFO"].startswith(callers.API):
            self._send(asked, self.admission.answer_without_slot)  # with 411
        else:
            asked.caller = callers.recognise(environ)
            if asked.length == 0 or asked.length > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
                self._work(asked)  # whose view answers 413 without the body
            elif asked.caller is not Caller.STRANGER or self._prove(asked):
                self._read(asked)
            else:
                self._begin_stranger(asked)

    def _prove(self, asked: _Asked) -> bool:
        """Look up the token or session that a stranger shows."""
        if callers.is_unproven(asked.environ):
            try:
                with self.admission.slot_of_stranger():
                    asked.caller = callers.look_up(asked.environ)
            except (Overloaded, DatabaseError, InterfaceError):
                pass  # the view meets the database, too, and answers
        return asked.caller is not Caller.STRANGER

    def _begin_stranger(self, asked: _Asked) -> None:
        path = asked.environ["PATH_INFO"]
        if path.startswith(callers.API):
            self._work(asked)  # the view answers 401 without the body
            return
        name, may_wait = "/", False
        for posts in SIGNED_POSTS:
            if path.startswith(posts.prefix):
                rest = path.removeprefix(posts.prefix)
                is_post = asked.environ["REQUEST_METHOD"] == "POST"
                if not is_post or not posts.may_be_signed(rest, HttpHeaders(asked.environ)):
                    self._work(asked)  # the view refuses it by its headers
                    return
                name, may_wait = posts.prefix + posts.name_of(rest), True
        asked.place = name
        answer = self.places.take(name, asked, may_wait=may_wait)
        if answer is Answer.PLACE:
            self._read(asked)
        elif answer is Answer.REFUSED:
            self._refuse_stranger(asked)

    def _read(self, asked: _Asked) -> None:
        body = asked.proto()
        self._reading[asked] = body, time.monotonic() + BODY_SECONDS
        # The future keeps its callback, which keeps the request. Python's collector does not see this part of
        # Granian: a request that kept the future, too, would stay for ever.
        body.add_done_callback(lambda body: self._go_on(asked, body))

    def _go_on(self, asked: _Asked, body: Any) -> None:
        """Answer a request whose body is here, came too slowly, or never comes."""
        try:
            if self._reading.pop(asked, None) is None:
                return
            if body.cancelled():
                detail = f"The body must be here {BODY_SECONDS:g} seconds after the headers."
                self._refuse(asked, Problem(TOO_SLOW, detail=detail))
            else:
                try:
                    asked.environ["wsgi.input"] = io.BytesIO(body.result())
                except Exception:  # noqa: BLE001 - Granian's own: the client is gone
                    return
                asked.is_unread = False
                self._work(asked)
        except BaseException:
            log.exception("a request was not answered")
        finally:
            self._leave_place(asked)

    def _leave_place(self, asked: _Asked) -> None:
        if asked.place:
            following = self.places.give(asked.place)
            asked.place = ""
            if following is not None:
                self._read(following)

    def _work(self, asked: _Asked) -> None:
        """Answer a request in a slot."""
        caller = Caller.SESSION if asked.environ["PATH_INFO"] in INSIDE else asked.caller

        def answer(environ: dict[str, Any], start_response: Any) -> Any:
            return self.admission(environ, start_response, caller=caller)

        try:
            self._send(asked, answer)
        except Overloaded:
            self._send_refusal(asked)

    def _refuse(self, asked: _Asked, problem: Problem) -> None:
        def answer(environ: dict[str, Any], start_response: Any) -> list[bytes]:
            return self.admission.refuse(environ, start_response, problem, began=asked.began)

        self._send(asked, answer)

    def _refuse_stranger(self, asked: _Asked) -> None:
        asked.place = ""
        self._send_refusal(asked)

    def _send_refusal(self, asked: _Asked) -> None:
        """Answer without Django, because thousands may come."""
        sent = context.accept_correlation_id(asked.environ.get("HTTP_X_CORRELATION_ID"))
        headers = [
            ("content-type", CONTENT_TYPE),
            ("retry-after", "1"),
            ("cache-control", "no-store"),
            (HEADER, sent or context.new_correlation_id()),
            _CLOSE,
        ]
        asked.proto.response_bytes(OVERLOADED.status, headers, _REFUSAL)
        REQUESTS.labels("refused", OVERLOADED.status).observe(time.perf_counter() - asked.began)

    def _send(self, asked: _Asked, answer: Callable[[dict[str, Any], Any], Any]) -> None:
        sent: list[Any] = []

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> None:
            sent[:] = int(status[:3]), headers

        chunks = answer(asked.environ, start_response)
        status, headers = sent
        if asked.is_unread:
            headers.append(_CLOSE)
        if isinstance(chunks, list):
            asked.proto.response_bytes(status, headers, b"".join(chunks))
            return
        try:
            if asked.environ["REQUEST_METHOD"] == "HEAD":  # nobody would read the body
                asked.proto.response_empty(status, headers)
            else:
                send_stream(asked.proto, status, headers, chunks)
        finally:
            chunks.close()
