"""The front decides by the headers who asks, whose body is read, and who waits or is refused."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.db import OperationalError

from tests.kit.api import make_token
from tests.kit.people import staff_client
from tests.kit.races import together
from tests.kit.waiting import replace_time
from tests.kit.words import ApiToken
from web.front import callers, front, places, posts
from web.front.admission import Admission
from web.front.front import Front
from web.front.posts import SignedPosts

pytestmark = pytest.mark.django_db(transaction=True)
ORDERS, SIGNED, LOGIN = "/api/v1/orders", "/signed/shop", "/admin/login/"
SECRET = "op_known"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Body:
    """Granian's future of a body."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[Any], object]] = []
        self._result: bytes | None = None
        self._is_cancelled = self._is_gone = False

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self._callbacks.append(callback)

    def cancelled(self) -> bool:
        return self._is_cancelled

    def result(self) -> bytes:
        if self._is_gone:
            raise RuntimeError("the client is gone")
        assert self._result is not None
        return self._result

    def cancel(self) -> None:
        self._is_cancelled = True
        self._end()

    def arrive(self, content: bytes) -> None:
        self._result = content
        self._end()

    def break_off(self) -> None:
        self._is_gone = True
        self._end()

    def _end(self) -> None:
        for callback in self._callbacks:
            callback(self)


class Request:
    """A request as Granian hands it over: the watcher, the scope and the protocol in one."""

    http_version, scheme, authority, query_string = "1.1", "http", None, ""
    client, server = "203.0.113.9:4711", "127.0.0.1:8000"

    def __init__(self, method: str, path: str, **headers: str) -> None:
        self.method, self.path = method, path
        self.headers = {name.replace("_", "-").lower(): text for name, text in headers.items()}
        self.headers.setdefault("host", "localhost")
        self.body: Body | None = None
        self.status = 0
        self.sent: dict[str, str] = {}
        self.content = b""

    @property
    def scope(self) -> Request:
        return self

    proto = scope

    def __call__(self) -> Body:
        assert self.body is None, "the body is read twice"
        self.body = Body()
        return self.body

    def response_empty(self, status: int, headers: list[tuple[str, str]]) -> None:
        self.response_bytes(status, headers, b"")

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        assert not self.status, "it is answered twice"
        self.status, self.content = status, body
        self.sent = {name.lower(): text for name, text in headers}


class Echo:
    """An application that answers with the body and remembers its requests."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        self.bodies.append(environ["wsgi.input"].read())
        start_response("200 OK", [])
        return _Whole([self.bodies[-1]])


class _Whole(list[bytes]):
    streaming = False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    replace_time(monkeypatch, front, monotonic=clock)
    return clock


@pytest.fixture
def app() -> Echo:
    return Echo()


@pytest.fixture
def doors(app: Echo, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Front:
    """Return a front that knows one token, and one path of signed posts."""
    signed = SignedPosts(
        prefix="/signed/",
        name_of=lambda rest: rest,
        may_be_signed=lambda _, headers: "X-Signature" in headers,
    )
    monkeypatch.setattr(posts, "SIGNED_POSTS", [signed])
    monkeypatch.setattr(front, "SIGNED_POSTS", [signed])
    monkeypatch.setattr(callers, "_known_until", {})
    monkeypatch.setattr(callers.DIGESTS, "value", {ApiToken.digest_of(SECRET): True})
    made = Front(Admission(app, slots=2))
    made.places = places.Places(clock=clock)
    return made


def order(secret: str = SECRET, length: int = 2) -> Request:
    return Request("POST", ORDERS, Authorization=f"Bearer {secret}", Content_Length=str(length))


def signed(path: str = SIGNED) -> Request:
    return Request("POST", path, X_Signature="s", Content_Length="2")


def take(doors: Front, *requests: Request) -> None:
    """Hand requests over in a thread: a slot takes away the connections of the thread that it leaves."""

    def take_all(_: int) -> None:
        for request in requests:
            doors.take(request)

    together(1, take_all)


def in_thread(call: Callable[[], object]) -> None:
    together(1, lambda _: call())


def test_a_request_of_a_live_token_is_answered_when_its_body_is_here(doors, app):
    request = order()
    take(doors, request)
    assert not app.bodies and request.body is not None
    in_thread(lambda: request.body.arrive(b"{}"))
    assert (request.status, request.content, request.sent) == (200, b"{}", {})
    assert doors.places.working == 0


def test_a_request_whose_body_was_read_leaves_nothing(doors):
    """Granian's future keeps its callback, and Python's collector does not see what it keeps."""
    requests = [order(), signed()]
    take(doors, *requests)
    bodies = [weakref.ref(request.body) for request in requests]
    gc.disable()
    try:
        for request in requests:
            in_thread(lambda body=request.body: body.arrive(b"{}"))
            request.body = None
        assert [body() for body in bodies] == [None, None]
    finally:
        gc.enable()


def test_the_liveness_probe_needs_no_slot(doors):
    for _ in range(2):
        doors.admission.slots.take(is_refusable=True)
    request = Request("GET", "/healthz")
    take(doors, request)
    assert request.status == 200


def test_a_slow_body_is_ended_after_five_seconds_whoever_sends_it(doors, app, clock):
    slow = [order(), signed()]
    take(doors, *slow)
    clock.now += front.BODY_SECONDS - 0.1
    in_thread(doors.tick)
    assert [request.status for request in slow] == [0, 0] and doors.places.working == 1
    clock.now += 0.1
    doors.admission._application = WSGIHandler()
    in_thread(doors.tick)
    for request in slow:
        assert (request.status, request.sent["connection"]) == (408, "close")
        assert json.loads(request.content)["type"] == "urn:orderpost:problem:too-slow"
    assert not app.bodies and doors.places.working == 0


def test_no_body_of_a_caller_with_a_made_up_token_is_read(doors, app):
    for request in (order("op_made_up"), Request("POST", ORDERS, Content_Length="2")):
        take(doors, request)
        assert (request.body, request.status, request.sent["connection"]) == (None, 200, "close")
    assert app.bodies == [b"", b""]


def test_a_token_that_is_newer_than_what_the_process_knows_is_looked_up_once(doors, app):
    secret = make_token()
    request, again = order(secret), order(secret)
    take(doors, request)
    assert request.body is not None and not request.status
    assert callers.recognise({"PATH_INFO": ORDERS, "HTTP_AUTHORIZATION": f"Bearer {secret}"}) is (
        callers.Caller.TOKEN
    )
    take(doors, again)
    assert again.body is not None and doors.places.working == 0


def test_a_revoked_token_is_a_strangers(doors):
    secret = make_token()
    ApiToken.objects.update(revoked_at="2026-01-01T00:00Z")
    request = order(secret)
    take(doors, request)
    assert request.body is None and request.status == 200


def test_a_live_session_sends_its_form_without_a_place_and_a_made_up_one_with_one(doors):
    session = staff_client("view_order").cookies["sessionid"].value
    for key, working in ((session, 0), ("m" * 32, 1), ("made-up", 2), ("nul\x00", 3)):
        request = Request("POST", "/admin/x/", Cookie=f"sessionid={key}", Content_Length="2")
        take(doors, request)
        assert request.body is not None and doors.places.working == working


def test_a_caller_is_a_stranger_while_the_database_cannot_be_asked(doors, monkeypatch):
    def fail(_: object) -> None:
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(callers, "look_up", fail)
    request = order("op_new")
    take(doors, request)
    assert (request.body, request.status) == (None, 200)
    assert len(doors.admission.slots._free) == 2


def test_a_head_reads_no_answer_that_is_made_while_it_is_sent(doors):
    class Streamed(list[bytes]):
        streaming = True

        def close(self) -> None:
            closed.append(True)

    def stream(_: object, start_response: Any) -> Streamed:
        start_response("200 OK", [])
        return Streamed()

    closed: list[bool] = []
    doors.admission._application = stream
    request = Request("HEAD", "/admin/x/csv/")
    take(doors, request)
    assert (request.status, closed) == (200, [True]) and len(doors.admission.slots._free) == 2


def test_a_fifth_stranger_at_the_login_is_refused_at_once_and_closed(doors):
    requests = [Request("POST", LOGIN, Content_Length="2") for _ in range(5)]
    take(doors, *requests)
    assert [request.status for request in requests] == [0, 0, 0, 0, 503]
    refused = requests[-1]
    assert (refused.sent["connection"], refused.sent["retry-after"]) == ("close", "1")
    assert len(refused.sent["x-correlation-id"]) == 32
    assert json.loads(refused.content)["type"] == "urn:orderpost:problem:overloaded"


def test_a_signed_post_waits_for_a_place_and_is_taken(doors, app):
    requests = [signed() for _ in range(5)]
    take(doors, *requests)
    last = requests[-1]
    assert last.body is None and not last.status
    in_thread(lambda: requests[0].body.arrive(b"{}"))
    assert requests[0].status == 200 and last.body is not None
    in_thread(lambda: last.body.arrive(b"[]"))
    assert (last.status, last.content) == (200, b"[]")


def test_a_signed_post_that_waits_too_long_is_refused(doors, clock):
    requests = [signed() for _ in range(5)]
    take(doors, *requests)
    clock.now += 1
    for request in requests[:4]:
        asked = next(asked for asked in doors._reading if asked.proto is request)
        body, until = doors._reading[asked]
        doors._reading[asked] = body, until + 100
    clock.now += places.WAIT_SECONDS
    in_thread(doors.tick)
    assert requests[-1].status == 503 and doors.places.waiting == 0


def test_a_post_that_cannot_be_signed_is_answered_without_its_body(doors, app):
    for request in (
        Request("POST", SIGNED, Content_Length="2"),
        Request("PUT", SIGNED, X_Signature="s", Content_Length="2"),
    ):
        take(doors, request)
        assert (request.status, request.body) == (200, None)
    assert doors.places.working == 0


def test_a_body_over_a_megabyte_is_not_read(doors, app):
    for request in (order(length=1_000_001), signed()):
        request.headers["content-length"] = "1000001"
        take(doors, request)
        assert (request.status, request.body, request.sent["connection"]) == (200, None, "close")


def test_a_body_in_chunks_is_refused_everywhere(doors):
    doors.admission._application = WSGIHandler()
    token = f"Bearer {make_token()}"
    for path in (ORDERS, "/connect/x", "/webhooks/sendgrid", LOGIN, "/nowhere"):
        request = Request("POST", path, Transfer_Encoding="chunked", Authorization=token)
        take(doors, request)
        assert (request.status, request.sent["connection"]) == (411, "close")


def test_a_client_that_goes_leaves_its_place(doors, app):
    request = signed()
    take(doors, request)
    in_thread(request.body.break_off)
    assert doors.places.working == 0 and not app.bodies and not request.status


def test_an_error_leaves_place_and_slot(doors, caplog):
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    doors.admission._application = fail
    request = signed()
    take(doors, request)
    in_thread(lambda: request.body.arrive(b"{}"))
    assert doors.places.working == 0 and len(doors.admission.slots._free) == 2
    assert "a request was not answered" in caplog.text


def test_strangers_are_refused_while_others_wait_and_what_is_inside_is_not(doors, monkeypatch):
    asked: list[int] = []

    def take_as_other(*, most_waiting: int) -> dict[str, Any]:
        asked.append(most_waiting)
        return {}

    monkeypatch.setattr(doors.admission.slots, "take_as_other", take_as_other)
    monkeypatch.setattr(doors.admission.slots, "give", lambda *_, **__: None)
    for path in ("/admin/", "/readyz", "/metrics"):
        take(doors, Request("GET", path))
    assert asked == [32, 64, 64]


def test_a_stop_refuses_who_waits_and_ends_the_bodies_of_strangers(doors, app):
    requests = [order(), *(signed() for _ in range(5))]
    take(doors, *requests)
    doors.close()
    doors.admission._application = WSGIHandler()
    in_thread(doors.tick)
    assert [request.status for request in requests] == [0, 408, 408, 408, 408, 503]
    doors.admission._application = app
    in_thread(lambda: requests[0].body.arrive(b"{}"))
    assert requests[0].status == 200


@pytest.fixture(autouse=True)
def connections_closed(doors: Front) -> Iterator[None]:
    """Close the connections of the slots."""
    yield
    for held in doors.admission.slots._free:
        for database in held.values():
            database.close()
