"""Whatever goes wrong is answered as a problem, and nothing of the inside shows."""

from __future__ import annotations

import datetime as dt
import uuid

import pytest
from django.db import InterfaceError, OperationalError, close_old_connections, connection, transaction
from django.test import Client, RequestFactory

from runtime.database import away
from tests.kit.api import Api, assert_problem, make_token, order_body, row_counts
from tests.kit.races import together
from tests.kit.words import Order, order_services
from web.api import problems


@pytest.mark.parametrize(
    "path",
    [
        "/api",
        "/api/",
        "/api/v1",
        "/api/v2/orders",
        "/api/v1/orders/",
        "/api/v1/x/y",
        "/nothing",
        "/webhooks/x",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
@pytest.mark.parametrize("debug", [False, True])
def test_an_unknown_path_is_404_and_redirected_nowhere(db, settings, path, method, debug):
    if debug and not path.startswith(("/api", "/webhooks")):
        pytest.skip("outside the API Django's own page helps who debugs")
    settings.DEBUG = debug
    assert_problem(Api().request(method, path, {} if method == "POST" else None), 404, "not-found")


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"])
@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/api/v1/orders", {"GET", "HEAD", "POST"}),
        (f"/api/v1/orders/{uuid.UUID(int=1)}", {"GET", "HEAD"}),
        (f"/api/v1/orders/{uuid.UUID(int=1)}/pay", {"POST"}),
        (f"/api/v1/orders/{uuid.UUID(int=1)}/events", {"GET", "HEAD"}),
        (f"/api/v1/notifications/{uuid.UUID(int=1)}", {"GET", "HEAD"}),
        (f"/api/v1/notifications/{uuid.UUID(int=1)}/resend", {"POST"}),
        ("/healthz", {"GET", "HEAD"}),
    ],
)
def test_another_method_is_405_naming_those_allowed(api, method, path, allow):
    response = api.request(method, path)
    assert_problem(response, 405, "method-not-allowed")
    assert set(response.headers["Allow"].split(", ")) == allow


def test_an_order_cannot_be_posted_to_nor_a_change_be_read(api):
    path = api.place()
    assert_problem(api.post(path), 405, "method-not-allowed")
    assert_problem(api.get(f"{path}/pay"), 405, "method-not-allowed")
    assert_problem(api.post("/api/v1/notifications"), 405, "method-not-allowed")


@pytest.mark.parametrize("accept", ["text/html", "application/xml", "application/problem+json", "*/*", "x"])
def test_the_answer_is_json_whatever_is_accepted(api, accept):
    assert api.get("/api/v1/orders", Accept=accept).headers["Content-Type"] == "application/json"
    assert_problem(api.get("/api/v1/orders/x", Accept=accept), 404, "not-found")


def test_a_foreign_host_is_400(db):
    assert_problem(Api().get("/api/v1/orders", Host="evil.example"), 400, "malformed")


def test_a_failure_of_ours_is_500_without_its_cause(api, monkeypatch):
    def fail(**_):
        raise RuntimeError("password=hunter2 in /srv/secret")

    monkeypatch.setattr(order_services, "place", fail)
    response = api.post("/api/v1/orders", order_body())
    problem = assert_problem(response, 500, "internal")
    assert set(problem) == {"type", "title", "status", "detail", "help"}
    assert b"hunter2" not in response.content and b"secret" not in response.content


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("key", [None, "k"])
def test_a_database_that_does_not_answer_in_time_is_503_and_nothing_is_changed(api, key):
    path = api.place()
    before = row_counts()

    def pay(_):
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '50ms'")
        return api.post(f"{path}/pay", key=key)

    with transaction.atomic():
        Order.objects.select_for_update().get()
        (response,) = together(1, pay)
    assert_problem(response, 503, "unavailable")
    assert response.headers["Retry-After"] == "1"
    assert row_counts() == before
    assert api.post(f"{path}/pay", key=key).status_code == 200


@pytest.mark.django_db(transaction=True)
def test_a_connection_that_the_server_closes_under_a_request_is_a_503_and_the_next_is_fine(api, monkeypatch):
    path = api.place()
    get = Order.objects.filter

    def lose(**conditions):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            (pid,) = cursor.fetchone()
        other = connection.copy()
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        other.close()
        return get(**conditions)

    def read_twice(_):
        with monkeypatch.context() as broken:
            broken.setattr(Order.objects, "filter", lose)
            lost = api.get(path)
        close_old_connections()  # a server's signal does this between requests; the test client's does not
        return lost, api.get(path)

    ((lost, after),) = together(1, read_twice)
    assert_problem(lost, 503, "unavailable")
    assert after.status_code == 200


def test_a_lost_connection_is_503(api, monkeypatch):
    def fail(**_):
        raise InterfaceError("connection already closed")

    monkeypatch.setattr(order_services, "place", fail)
    assert_problem(api.post("/api/v1/orders", order_body()), 503, "unavailable")


def test_djangos_own_handlers_answer_problems_outside_the_admin_and_pages_inside():
    request, admin = RequestFactory().get("/x"), RequestFactory().get("/admin/x")
    error = Exception("secret")
    for handler, status in [
        (problems.handle_400, 400),
        (problems.handle_403, 403),
        (problems.handle_404, 404),
    ]:
        assert handler(request, error).headers["Content-Type"] == "application/problem+json"
        page = handler(admin, error)
        assert page.status_code == status and page.headers["Content-Type"].startswith("text/html")
        assert b"orderpost/admin.css" in page.content and b"Go to the overview" in page.content
        assert b"secret" not in handler(request, error).content
    assert problems.handle_500(request).headers["Content-Type"] == "application/problem+json"
    page = problems.handle_500(admin)
    assert page.headers["Content-Type"].startswith("text/html") and b"Something failed" in page.content


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("connection to server at 10.1.2.3, port 5432 failed: refused", "PostgreSQL does not answer since"),
        ("FATAL: sorry, too many clients already", "PostgreSQL refuses new connections since"),
    ],
)
def test_the_admin_says_since_when_postgresql_does_not_answer_and_nothing_of_it(error, said, monkeypatch):
    monkeypatch.setattr(away.silence, "since", dt.datetime(2026, 11, 29, 22, 41, tzinfo=dt.UTC))
    try:
        raise OperationalError(error)
    except OperationalError:
        page = problems.handle_500(RequestFactory().get("/admin/"))
    text = page.content.decode()
    assert page.status_code == 503 and page.headers["Retry-After"] == "1"
    assert f"{said} 22:41 UTC; <code>manage.py status</code> on the host says more" in text
    assert "10.1.2.3" not in text and "5432" not in text
    login = Client().get("/admin/login/")  # also to anybody
    assert login.status_code == 503 and b"PostgreSQL does not answer since 22:41 UTC" in login.content
    away.silence.end()
    assert Client().get("/admin/login/").status_code == 200


def test_the_admin_still_gets_its_slash(db):
    assert Client().get("/admin").headers["Location"] == "/admin/"


def test_a_pointer_escapes_what_rfc_6901_and_a_fragment_need():
    fault = problems.RequestFault(("items", 0, "a/b~c d", "\ud800"), "x")
    assert fault.document["pointer"] == "#/items/0/a~1b~0c%20d/%3F"


def test_a_client_that_goes_away_while_sending_is_a_400(db, monkeypatch):
    class Gone:
        def read(self, *_):
            raise OSError("connection reset")

        readline = read

    secret = make_token()
    response = Client(raise_request_exception=False).post(
        "/api/v1/orders",
        content_type="application/json",
        headers={"Authorization": f"Bearer {secret}"},
        **{"wsgi.input": Gone(), "CONTENT_LENGTH": "5"},
    )
    assert_problem(response, 400, "malformed")
