"""A process that has too much to do refuses new work with a problem, and nothing else."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.contrib.auth.models import User
from django.core.handlers.wsgi import WSGIHandler
from django.db import connection, connections
from django.http import HttpResponse
from django.test import RequestFactory
from django.utils.crypto import get_random_string
from django.utils.http import urlencode

import config.settings as shipped
from config.web import THREADS
from orders.admin import previews
from runtime.process import slots
from tests.kit.api import assert_problem, make_token, order_body, row_counts
from tests.kit.orders import make_order
from tests.kit.people import staff_client
from tests.kit.races import together
from tests.kit.waiting import PATIENCE, until
from web.admin.page_limits import TURNS
from web.front import admission
from web.front.admission import Admission
from web.front.callers import Caller

pytestmark = pytest.mark.django_db(transaction=True)


class Server:
    """Calls an `Admission` as `Front` does. Paths of the API have a live token, others a session."""

    made: ClassVar[list[Server]] = []

    def __init__(self, application: Any = None, *, slots: int = 1) -> None:
        self.headers = {"Authorization": f"Bearer {make_token()}"}
        self.admission = Admission(application or WSGIHandler(), slots=slots)
        self.made.append(self)

    def close(self) -> None:
        for held in self.admission.slots._free:
            for database in held.values():
                database.close()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> HttpResponse:
        return together(1, lambda _: self.ask_here(method, path, body, **headers))[0]

    def ask_here(self, method: str, path: str, body: Any = None, **headers: str) -> HttpResponse:
        raw = b"" if body is None else json.dumps(body).encode()
        factory = RequestFactory(headers=self.headers | headers)
        return self.answer(factory.generic(method, path, raw, "application/json").environ)

    def browse(self, method: str, path: str, form: dict[str, str] | None = None, session: str = "") -> int:
        """Send a request as a browser does, and return the status of its answer."""
        factory, secret = RequestFactory(), get_random_string(32)
        factory.cookies.load({"csrftoken": secret, "sessionid": session})
        values = urlencode({**(form or {}), "csrfmiddlewaretoken": secret}) if method == "POST" else ""
        form_type = "application/x-www-form-urlencoded"
        return self.answer(factory.generic(method, path, values, form_type).environ).status_code

    def answer(self, environ: dict[str, Any]) -> HttpResponse:
        answered: list[Any] = []
        is_api = environ["PATH_INFO"].startswith("/api/")
        chunks = self.admission(
            environ,
            lambda status, fields: answered.extend((status, fields)),
            caller=Caller.TOKEN if is_api else Caller.SESSION,
        )
        content = b"".join(chunks)
        if hasattr(chunks, "close"):
            chunks.close()
        status, fields = answered
        return HttpResponse(content, status=int(status.split()[0]), headers=dict(fields))


class Stuck:
    """Replaces a function by one that lets its callers in and none of them out, until `release`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self._free, self._counting = threading.Event(), threading.Lock()
        self.inside = self.most = 0
        real = getattr(owner, name)

        def stuck(*args: Any, **kwargs: Any) -> Any:
            with self._counting:
                self.inside += 1
                self.most = max(self.most, self.inside)
            self._free.wait(PATIENCE)
            with self._counting:
                self.inside -= 1
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, stuck)

    def release(self) -> None:
        self._free.set()


@contextmanager
def in_flight(
    stuck: Stuck, count: int, ask: Callable[[int], int], *, refused: int
) -> Iterator[list[Future[int]]]:
    """Send requests until all but those inside `stuck`, or behind it, have an answer. Then run the block."""
    with ThreadPoolExecutor(count) as pool:
        try:
            asked = [pool.submit(ask, number) for number in range(count)]
            until(
                lambda: stuck.inside and sum(future.done() for future in asked) == refused,
                "the rest is refused",
            )
            yield asked
        finally:
            stuck.release()


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close the connections of the servers' slots."""
    yield
    while Server.made:
        Server.made.pop().close()


@pytest.fixture
def impatient(monkeypatch):
    """Let nobody wait for a slot."""
    monkeypatch.setattr(
        admission,
        "RequestSlots",
        lambda values, **_: slots.RequestSlots(values, most_waiting=0, patience_seconds=0),
    )


@pytest.fixture
def full(impatient) -> Server:
    """Return a server whose only slot is taken."""
    server = Server()
    server.admission.slots.take(is_refusable=True)
    return server


def test_new_work_is_refused_with_a_problem_that_says_when_to_come_again_and_changes_nothing(full):
    before = row_counts()
    for path, body in [("/api/v1/orders", order_body()), ("/api/v1/events", [])]:
        refused = full.ask("POST", path, body, **{"Idempotency-Key": "k"})
        problem = assert_problem(refused, 503, "overloaded")
        assert set(problem) == {"type", "title", "status", "detail", "help"}
        assert refused.headers["Retry-After"] == "1"
        assert refused.headers["Content-Security-Policy"]
    assert row_counts() == before


def test_the_same_key_works_after_the_overload(full):
    body = order_body()
    assert full.ask("POST", "/api/v1/orders", body, **{"Idempotency-Key": "k"}).status_code == 503
    full.admission.slots.give({})
    first, again = (full.ask("POST", "/api/v1/orders", body, **{"Idempotency-Key": "k"}) for _ in range(2))
    assert first.status_code == again.status_code == 201 and first.content == again.content
    assert again.headers["Idempotency-Replayed"] == "true"


def test_a_refusal_opens_no_connection(full):
    def ask(_: int) -> Sequence[Any]:
        full.ask_here("POST", "/api/v1/orders", order_body())
        return connections.all(initialized_only=True)

    assert not together(1, ask)[0]


def test_a_refusal_has_the_line_of_each_request_and_no_error(full, caplog):
    caplog.set_level("INFO")
    full.ask("POST", "/api/v1/orders", order_body())
    lines = [(record.name, record.levelname) for record in caplog.records]
    assert lines.count(("orderpost.access", "INFO")) == 1
    assert not [name for name, level in lines if level not in ("DEBUG", "INFO")]


@pytest.mark.parametrize(
    ("method", "path", "is_refusable"),
    [
        ("POST", "/api/v1/orders", True),
        ("POST", "/api/v1/events", True),
        ("GET", "/api/v1/orders", False),
        ("HEAD", "/api/v1/orders", False),
        ("POST", "/webhooks/sendgrid", None),
        ("POST", "/admin/login/", None),
        ("GET", "/readyz", None),
        ("GET", "/metrics", None),
    ],
)
def test_only_a_post_of_the_api_may_be_refused_and_others_have_their_own_queue(
    monkeypatch, method, path, is_refusable
):
    server = Server(lambda environ, start: [start("200 OK", []) or b""])
    asked: list[bool | None] = []
    slots = server.admission.slots
    take, take_as_other = slots.take, slots.take_as_other
    monkeypatch.setattr(
        slots, "take", lambda *, is_refusable: (asked.append(is_refusable), take(is_refusable=True))[1]
    )
    monkeypatch.setattr(slots, "take_as_other", lambda **most: (asked.append(None), take_as_other(**most))[1])
    assert server.ask(method, path).status_code == 200
    assert asked == [is_refusable]


def test_the_requests_of_all_threads_use_the_connection_of_the_slot_and_leave_none_behind():
    sessions = set()

    def application(environ: Any, start: Any) -> HttpResponse:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            sessions.add(cursor.fetchone()[0])
        start("200 OK", [])
        return HttpResponse(b"")

    server = Server(application)
    left = together(5, lambda _: (server.ask_here("GET", "/x"), connections.all(initialized_only=True))[1])
    assert len(sessions) == 1 and left == [[]] * 5


def test_a_streamed_body_keeps_its_slot_until_the_server_closes_it():
    class Streamed(list[bytes]):
        streaming = True

        def close(self) -> None:
            closed.append(len(server.admission.slots))

    closed: list[int] = []
    server = Server(lambda environ, start: Streamed([b"a", b"b"]))
    environ = RequestFactory().get("/x").environ

    def ask(_: int) -> None:
        body = server.admission(environ, lambda *_: None, caller=Caller.SESSION)
        assert list(body) == [b"a", b"b"] and not server.admission.slots._free
        body.close()

    together(1, ask)
    assert closed == [0] and len(server.admission.slots._free) == 1


def test_an_error_gives_the_slot_back():
    class Failed(Exception):
        pass

    def application(environ: Any, start: Any) -> Any:
        raise Failed

    server = Server(application)
    for _ in range(2):
        with pytest.raises(Failed):
            server.ask("GET", "/x")
    assert len(server.admission.slots._free) == 1


LOGINS, PREVIEWS = 30, 16


def test_a_process_hashes_one_password_of_thirty_and_accepts_orders_meanwhile(monkeypatch, settings):
    User.objects.create_user("ann", password="right horse", is_staff=True)
    settings.PASSWORD_HASHERS = shipped.PASSWORD_HASHERS
    hashes = Stuck(monkeypatch, PBKDF2PasswordHasher, "encode")
    server = Server(slots=THREADS)

    def log_in(number: int) -> int:
        form = {"username": f"name-{number}", "password": "wrong"}
        status: int = server.browse("POST", "/admin/login/", form)
        return status

    with in_flight(hashes, LOGINS, log_in, refused=LOGINS - 1) as logins:
        assert hashes.inside == 1
        placed = [server.ask("POST", "/api/v1/orders", order_body()).status_code for _ in range(5)]
        assert placed == [201] * 5
    assert Counter(login.result() for login in logins) == {429: LOGINS - 1, 200: 1}
    assert hashes.most == 1


def test_a_person_has_one_preview_in_work_and_the_newest_waits_while_orders_are_accepted(monkeypatch):
    monkeypatch.setattr(TURNS, "_patience", PATIENCE)
    session = staff_client("view_order").cookies["sessionid"].value
    page = f"/admin/orders/order/{make_order().id}/emails/"
    renders = Stuck(monkeypatch, previews, "render_email")
    server = Server(slots=THREADS)

    def preview(_: int) -> int:
        status: int = server.browse("GET", page, session=session)
        return status

    with in_flight(renders, PREVIEWS, preview, refused=PREVIEWS - 2) as asked:
        assert (renders.inside, TURNS.waiting) == (1, 1)
        placed = [server.ask("POST", "/api/v1/orders", order_body()).status_code for _ in range(5)]
        assert placed == [201] * 5
    assert Counter(future.result() for future in asked) == {409: PREVIEWS - 2, 200: 2}
    assert (renders.most, TURNS.in_work, TURNS.waiting) == (1, 0, 0)


def test_a_process_has_two_expensive_pages_in_work_and_tells_others_to_wait(monkeypatch):
    sessions = [
        staff_client("view_order", name=f"staff-{number}").cookies["sessionid"].value for number in range(6)
    ]
    page = f"/admin/orders/order/{make_order().id}/emails/"
    renders = Stuck(monkeypatch, previews, "render_email")
    server = Server(slots=THREADS)

    def preview(number: int) -> int:
        status: int = server.browse("GET", page, session=sessions[number])
        return status

    with in_flight(renders, len(sessions), preview, refused=len(sessions) - 2) as asked:
        assert server.ask("POST", "/api/v1/orders", order_body()).status_code == 201
    assert Counter(future.result() for future in asked) == {429: len(sessions) - 2, 200: 2}
    assert renders.most == 2
