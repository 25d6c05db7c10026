"""POST /orders/{id}/refund with a refund_id, and the answers to refunds that events report, too."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.kit.api import Api, assert_problem, row_counts
from tests.kit.events import PAID, REFUNDED, envelope
from tests.kit.words import EmailNotification, Order

pytestmark = pytest.mark.django_db(transaction=True)
URL = "/api/v1/events"
BEGIN_AND_COMMIT = 2  # which Django counts as statements


@pytest.fixture
def path(api: Api) -> str:
    """Return the path of a paid order."""
    place = api.place()
    assert api.post(f"{place}/pay").status_code == 200
    return place


def event(path: str, topic: str = REFUNDED, **data: Any) -> dict[str, Any]:
    return envelope(topic, {"orderId": path.rpartition("/")[2]} | data)


def test_the_same_refund_by_the_api_and_by_events_is_answered_with_the_order_as_it_is(api, path):
    first = api.post(f"{path}/refund", {"amount": 392, "refund_id": "re_1"}, key="a")
    assert (first.status_code, first.json()["refunded_amount"]) == (200, 392)
    before = row_counts()
    for body in ({"amount": 392, "refund_id": "re_1"}, {"refund_id": "re_1"}):
        assert api.post(f"{path}/refund", body).json() == first.json() == api.get(path).json()
    assert row_counts() == before
    for _ in range(2):
        answer = api.post(URL, event(path, amount=392, refundId="re_1"))
        assert (answer.status_code, answer.json()["result"]) == (200, "processed")
    assert api.get(path).json() == first.json()


def test_a_repeat_under_its_key_is_the_stored_answer_and_under_another_key_the_order(api, path):
    body = {"amount": 392, "refund_id": "re_1"}
    first = api.post(f"{path}/refund", body, key="a")
    api.post(f"{path}/complete")
    again, other = api.post(f"{path}/refund", body, key="a"), api.post(f"{path}/refund", body, key="b")
    assert again.content == first.content and again.headers["Idempotency-Replayed"] == "true"
    assert other.json() == api.get(path).json() and other.json()["version"] == 4


def test_another_amount_is_a_problem_that_names_the_first(api, path):
    api.post(f"{path}/refund", {"amount": 392, "refund_id": "re_1"})
    before = row_counts()
    body = {"amount": 393, "refund_id": "re_1"}
    problem = assert_problem(api.post(f"{path}/refund", body, key="k"), 409, "refund-exists")
    assert problem["amount"] == 392 and "392" in problem["detail"]
    answer = api.post(URL, event(path, amount=1, refundId="re_1"))
    assert "A refund of 392 has this id" in assert_problem(answer, 422, "unusable-event")["detail"]
    assert row_counts() == before


def test_a_refund_that_came_as_an_event_before_is_found(api, path):
    api.post(URL, event(path, refundId="re_1"))
    answer = api.post(f"{path}/refund", {"amount": 10_000, "refund_id": "re_1"})
    assert (answer.status_code, answer.json()["status"]) == (200, "refunded")
    assert EmailNotification.objects.filter(event_type="order.refunded").count() == 1


def test_an_equal_refund_without_an_id_is_answered_with_a_warning(api, path):
    first = api.post(f"{path}/refund", {"amount": 392}).json()
    assert "warnings" not in first
    answer = api.post(URL, event(path, amount=392)).json()
    assert answer["result"] == "processed"
    assert answer["warnings"] == [
        "Equal refunds came over the API and as an event within an hour, and both count. If they are one"
        " refund, send its id each time: refund_id over the API, refundId in events."
    ]
    third = api.post(f"{path}/refund", {"amount": 392}).json()
    assert third["warnings"][0].startswith("Equal refunds came as an event and over the API within an hour")
    assert third["refunded_amount"] == 3 * 392
    in_list = api.post(URL, [event(path, amount=392), event(path, amount=391)]).json()["results"]
    assert [len(result.get("warnings", [])) for result in in_list] == [1, 0]


@pytest.mark.parametrize("id", ["", "   ", "x" * 101, 5, None, ["re_1"], "ann@example.com"])
def test_what_is_no_id_is_refused(api, path, id):
    problem = assert_problem(api.post(f"{path}/refund", {"refund_id": id}), 400, "validation")
    assert problem["errors"][0]["pointer"] == "#/refund_id"
    assert Order.objects.get().refunded_amount == 0


@pytest.mark.parametrize("id", ["x" * 100, "Rückzahlung 1/2", "{re_1}", "0"])
def test_any_other_text_is_an_id(api, path, id):
    for _ in range(2):
        answer = api.post(f"{path}/refund", {"amount": 1, "refund_id": id})
        assert (answer.status_code, answer.json()["refunded_amount"]) == (200, 1)


@pytest.mark.parametrize("body", [{"amount": 1}, {"amount": 1, "refund_id": "re_2"}])
def test_a_refund_takes_one_statement_more_than_other_changes(api, path, body):
    api.post(f"{path}/refund", {"amount": 1, "refund_id": "re_1"})
    with CaptureQueriesContext(connection) as captured:
        assert api.post(f"{path}/refund", body, key="k").status_code == 200
    assert len(captured) <= 4 + BEGIN_AND_COMMIT


def test_a_payment_that_must_be_returned_is_in_the_order_and_its_timeline(api, path):
    payment = event(path, PAID)
    assert_problem(api.post(URL, payment), 422, "unusable-event")
    assert api.get(path).json()["unexpected_payment_at"]
    assert api.get("/api/v1/orders").json()["results"][0]["unexpected_payment_at"]
    entries = api.get(f"{path}/timeline").json()["results"]
    assert [entry["kind"] for entry in entries if entry["what"] == "payment_unexpected"] == ["change"]
    assert api.post(URL, event(path, amount=10_000)).json()["result"] == "processed"
    order = api.get(path).json()
    assert "unexpected_payment_at" not in order
    assert (order["status"], order["refunded_amount"], order["version"]) == ("paid", 0, 2)
