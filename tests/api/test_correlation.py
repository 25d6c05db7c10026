"""The correlation id: in the answer, in what the request caused, in the log."""

from __future__ import annotations

import logging

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.kit.api import Api
from tests.kit.people import staff_client
from tests.kit.words import EmailNotification, Order

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize("id", ["a", "A1._-", "x" * 128])
def test_a_well_formed_id_comes_back_and_is_stored_with_all_that_follows(api, id):
    path = api.place()
    response = api.post(f"{path}/pay", X_Correlation_ID=id, traceparent=TRACE)
    assert response.headers["X-Correlation-ID"] == id
    mail = EmailNotification.objects.get()
    assert (mail.correlation_id, mail.traceparent) == (id, TRACE)
    metadata = api.get(f"{path}/events").json()["results"][-1]["metadata"]
    assert metadata["correlationId"] == id
    assert metadata["traceId"] == TRACE[3:35]


@pytest.mark.parametrize(
    "traceparent",
    [
        f"00-{'0' * 32}-{'1' * 16}-01",
        f"00-{'1' * 32}-{'0' * 16}-01",
        TRACE.upper(),
        TRACE[:-1],
        f"ff{TRACE[2:]}",
        "x",
        "",
    ],
)
def test_a_malformed_trace_is_ignored(api, traceparent):
    path = api.place()
    assert api.post(f"{path}/pay", traceparent=traceparent).status_code == 200
    assert EmailNotification.objects.get().traceparent == ""
    metadata = api.get(f"{path}/events").json()["results"][-1]["metadata"]
    assert metadata["traceId"] is None and "traceparent" not in metadata


@pytest.mark.parametrize("sent", ["", "x" * 129, "a b", "a/b", "é", "a\r\nb", None])
def test_any_other_id_is_ignored_and_one_is_made(api, sent):
    headers = {} if sent is None else {"X_Correlation_ID": sent}
    ids = {api.post("/api/v1/orders", {}, **headers).headers["X-Correlation-ID"] for _ in range(2)}
    assert len(ids) == 2
    assert all(len(id) == 32 and id.isalnum() for id in ids)


def test_an_order_remembers_the_id_of_its_placing(api):
    body = {"user_id": "6f2b7c9e-4b0d-4c55-9b57-0d5a2f6c1e11", "email": "a@example.com", "total_amount": 1}
    api.post("/api/v1/orders", body, X_Correlation_ID="place-1")
    assert Order.objects.get().correlation_id == "place-1"


@pytest.mark.parametrize("path", ["/api/v1/orders", "/nothing", "/healthz", "/admin/login/", "/api/docs"])
def test_every_answer_carries_it(db, path):
    response = Client().get(path, headers={"X-Correlation-ID": "me"})
    assert response.headers["X-Correlation-ID"] == "me"


def test_a_request_is_one_line_in_the_log_without_its_query(api, caplog):
    with caplog.at_level(logging.INFO, "orderpost.access"):
        api.get("/api/v1/notifications?recipient_email=alice@example.com", X_Correlation_ID="c-1")
    (line,) = [record.msg for record in caplog.records if record.name == "orderpost.access"]
    assert (line["method"], line["path"], line["status"]) == ("GET", "/api/v1/notifications", 200)
    assert line["correlation_id"] == "c-1" and line["duration_ms"] >= 0
    assert "alice" not in str(line)


@pytest.fixture
def lines(caplog):
    """Return the access log's lines so far."""
    caplog.set_level(logging.INFO, "orderpost.access")
    return lambda: [record.msg for record in caplog.records if record.name == "orderpost.access"]


@pytest.mark.parametrize(
    ("proxies", "remote", "forwarded", "client"),
    [
        ([], "203.0.113.9", "198.51.100.7", "203.0.113.0/24"),
        (["10.0.0.0/8"], "10.0.0.5", "1.1.1.1, 198.51.100.7", "198.51.100.0/24"),
        (["10.0.0.0/8"], "10.0.0.5", "2001:db8:1:2::7", "2001:db8:1::/48"),
        ([], "2001:db8:1:2::7", None, "2001:db8:1::/48"),
        ([], "", None, None),  # a server at a UNIX socket
    ],
)
def test_a_line_has_the_clients_network(db, settings, lines, proxies, remote, forwarded, client):
    settings.TRUSTED_PROXIES = proxies
    headers = {} if forwarded is None else {"X-Forwarded-For": forwarded}
    Client().get("/api/v1/orders", headers=headers, REMOTE_ADDR=remote)
    (line,) = lines()
    assert line.get("client") == client
    for address in filter(None, [remote, *(forwarded or "").split(", ")]):
        assert address not in str(line)


def test_a_line_has_the_id_of_the_admins_user_and_not_the_name(db, lines):
    client = staff_client("view_order", name="ann.smith")
    client.get("/admin/orders/order/")
    client.get("/admin/logout/")  # answers 405
    Client().get("/admin/login/")
    Client().get("/admin/orders/order/")
    staff, refused, login, stranger = lines()
    assert staff["user"] == User.objects.get().pk and "ann" not in str(staff)
    assert "user" not in login and "user" not in stranger
    assert "ann" not in str(refused)


def test_a_line_has_a_token_and_no_user(api, lines):
    api.get("/api/v1/orders")
    (line,) = lines()
    assert line["token"] and "user" not in line


def test_a_line_asks_the_database_nothing(db, lines):
    client = staff_client("view_order")
    with CaptureQueriesContext(connection) as captured:
        client.get("/api/docs")  # does not ask who is logged in
    assert "user" not in lines()[-1]
    assert not [query for query in captured if "auth_user" in query["sql"]]


def test_one_requests_id_does_not_reach_the_next(db):
    Api().get("/healthz", X_Correlation_ID="first")
    assert Api().get("/healthz").headers["X-Correlation-ID"] != "first"
