"""The correlation id: in the answer, in what the request caused, in the log."""

from __future__ import annotations

import logging

import pytest
from django.test import Client

from notifications.models import EmailNotification
from orders.models import Order
from tests.api.conftest import Api

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize("given", ["a", "A1._-", "x" * 128])
def test_a_well_formed_id_comes_back_and_is_stored_with_all_that_follows(api, given):
    path = api.place()
    response = api.post(f"{path}/pay", X_Correlation_ID=given, traceparent=TRACE)
    assert response.headers["X-Correlation-ID"] == given
    mail = EmailNotification.objects.get()
    assert (mail.correlation_id, mail.traceparent) == (given, TRACE)
    metadata = api.get(f"{path}/events").json()["results"][-1]["metadata"]
    assert metadata["correlationId"] == given
    assert metadata["traceId"] == TRACE[3:35]


@pytest.mark.parametrize(
    "given",
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
def test_a_malformed_trace_is_ignored(api, given):
    path = api.place()
    assert api.post(f"{path}/pay", traceparent=given).status_code == 200
    assert EmailNotification.objects.get().traceparent == ""
    metadata = api.get(f"{path}/events").json()["results"][-1]["metadata"]
    assert metadata["traceId"] is None and "traceparent" not in metadata


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "a/b", "é", "a\r\nb", None])
def test_any_other_id_is_ignored_and_one_is_made(api, given):
    headers = {} if given is None else {"X_Correlation_ID": given}
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


def test_one_requests_id_does_not_reach_the_next(db):
    Api().get("/healthz", X_Correlation_ID="first")
    assert Api().get("/healthz").headers["X-Correlation-ID"] != "first"
