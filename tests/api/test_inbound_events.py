"""POST /events: each event once, each answer in its place, and nothing stored of a refused event."""

from __future__ import annotations

import base64
import json
import math
import threading
from typing import Any

import pytest
from django.db import InternalError, OperationalError, connection
from django.test.utils import CaptureQueriesContext

from events.pause_watch import PauseWatch
from runtime.audit import Actor
from tests.kit.api import Api, assert_problem, make_token
from tests.kit.events import (
    INSUFFICIENT,
    PAID,
    RESERVED,
    SHOP,
    envelope,
    handle,
    new_id,
    order,
    received,
    status,
    told,
)
from tests.kit.words import (
    EmailNotification,
    Envelope,
    InboundDeadLetter,
    Order,
    Pause,
    ProcessedEvent,
    inbound,
    pauses,
    subscriptions,
)

URL = "/api/v1/events"
CE, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _shop(settings):
    settings.ORDER_SOURCES = [SHOP, "shop-b"]


def paid(order: Order | str, **more: Any) -> dict[str, Any]:
    return envelope(PAID, {"orderId": str(order.id if isinstance(order, Order) else order)}) | more


def cloud(event: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return an envelope's event as a CloudEvent."""
    attributes = {
        "specversion": "1.0",
        "id": event["eventId"],
        "type": event["eventType"],
        "source": event["source"],
        "time": event["timestamp"],
        "datacontenttype": "application/json",
        "data": event["data"],
    }
    if "sequence" in event["metadata"]:
        attributes["sequence"] = str(event["metadata"]["sequence"])
    return attributes | more


def results(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.content
    return [result["result"] for result in answer.json()["results"]]


def test_one_event_has_its_effect_once(api):
    placed = order()
    event = paid(placed)
    answer = api.post(URL, event)
    assert (answer.status_code, answer.json()) == (200, {"event_id": event["eventId"], "result": "processed"})
    assert api.post(URL, event).json()["result"] == "repeated"
    assert status(placed) == "paid"
    mails = EmailNotification.objects.filter(order_id=placed.id, event_type="order.paid")
    assert mails.get().correlation_id == "saga-1"


def test_a_refused_event_is_not_stored_and_can_be_corrected(api):
    placed = order()
    event = paid(new_id())
    problem = assert_problem(api.post(URL, event), 422, "unusable-event")
    assert problem["event_id"] == event["eventId"] and "There is no order" in problem["detail"]
    assert not ProcessedEvent.objects.exists() and not InboundDeadLetter.objects.exists()
    assert api.post(URL, event | {"data": {"orderId": str(placed.id)}}).json()["result"] == "processed"


def test_a_payment_of_another_amount_is_refused_with_both_amounts(api):
    placed = order()
    event = envelope(PAID, {"orderId": str(placed.id), "amount": 1, "currency": "USD"})
    problem = assert_problem(api.post(URL, event), 422, "unusable-event")
    assert problem["detail"] == (
        "The payment is of 1 USD, the order of 1000 USD (in minor units): return it, or correct the order"
    )
    assert status(placed) == "pending"
    assert results(api.post(URL, [event, paid(placed)])) == ["refused", "processed"]


def test_the_same_event_over_a_broker_and_over_http_has_one_effect(api):
    placed, other = order(), order()
    first, second = paid(placed), paid(other)
    assert handle(received(PAID, first)) == "done"
    assert results(api.post(URL, [first, second])) == ["repeated", "processed"]
    assert handle(received(PAID, second)) == "repeat"
    assert ProcessedEvent.objects.count() == 2 and not InboundDeadLetter.objects.exists()


def test_a_refused_event_is_a_dead_letter_when_the_broker_brings_it(api):
    event = paid(new_id())
    assert api.post(URL, event).status_code == 422
    assert handle(received(PAID, event)) == "dead"
    problem = assert_problem(api.post(URL, event), 422, "unusable-event")
    assert "dead letter" in problem["detail"]


def test_bad_events_in_a_list_stop_no_others_and_keep_the_order_of_the_answers(api):
    placed = order()
    good, last = paid(placed), envelope(RESERVED, {"orderId": str(placed.id)})
    events: list[Any] = [
        "text",
        None,
        {},
        good,
        good | {"eventId": "x"},
        paid(new_id()),
        good,
        paid(placed, eventType="payment.payment.lost.v1"),
        paid(placed, data={"orderId": str(placed.id), "note": "\x00"}),
        last,
    ]
    answer = api.post(URL, events).json()["results"]
    assert [each["result"] for each in answer] == [
        *("refused", "refused", "refused", "processed", "refused"),
        *("refused", "repeated", "refused", "refused", "processed"),
    ]
    assert [each["event_id"] for each in answer[:5]] == [None, None, None, good["eventId"], None]
    for each in answer:
        assert ("problem" in each) is (each["result"] == "refused")
        assert each.get("problem") is None or isinstance(each["problem"], str)
    assert "payment.payment.lost.v1" in answer[7]["problem"] and "NUL" in answer[8]["problem"]
    assert status(placed) == "confirmed"
    assert ProcessedEvent.objects.count() == 2


def test_events_of_one_order_are_processed_in_the_order_of_the_list(api):
    id = new_id()
    events = [told(change, id, at) for at, change in enumerate(("placed", "paid", "confirmed"), 1)]
    assert results(api.post(URL, events)) == ["processed"] * 3
    assert Order.objects.get(id=id).status == "confirmed"
    mails = EmailNotification.objects.filter(order_id=id).order_by("id")
    assert [mail.event_type for mail in mails] == ["order.paid"]


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        ("order.command.cancel_order.v1", "commands are not taken"),
        ("notification.email.sent.v1", "is not taken: use fulfilment.shipment.created.v1, "),
        ("order.order.paid.v1", "'order-service' is not in ORDER_SOURCES"),
        ("", "eventType is missing"),
    ],
)
def test_commands_and_our_own_topics_are_refused(api, settings, topic, said):
    settings.EVENT_COMMANDS = True
    event = told("paid", new_id(), 1, source="order-service") | {"eventType": topic}
    assert said in assert_problem(api.post(URL, event), 422, "unusable-event")["detail"]


def test_without_order_sources_an_order_event_says_why_it_is_refused(api, settings):
    settings.ORDER_SOURCES = []
    problem = assert_problem(api.post(URL, told("paid", new_id(), 1)), 422, "unusable-event")
    assert "ORDER_SOURCES" in problem["detail"]


def test_an_old_event_is_refused_as_over_a_broker(api):
    problem = api.post(URL, paid(order(), timestamp="2020-01-01T00:00:00Z")).json()
    assert "may be a repeat" in problem["detail"]


def test_the_idempotency_key_is_ignored_even_if_it_is_malformed(api):
    placed, other = order(), order()
    assert api.post(URL, paid(placed), key="same").json()["result"] == "processed"
    assert api.post(URL, paid(other), key="same").json()["result"] == "processed"
    assert api.post(URL, paid(order()), key="ä" * 300).status_code == 200


@pytest.mark.parametrize(
    ("body", "content_type", "status", "slug"),
    [
        (b"", "application/json", 400, "malformed"),
        (b"{", "application/json", 400, "malformed"),
        (b"\xff", "application/json", 400, "malformed"),
        (b"[" * 100_000, "application/json", 400, "malformed"),
        (b'"x"', "application/json", 400, "validation"),
        (b"[]", CE, 400, "validation"),
        (b"{}", BATCH, 400, "validation"),
        (json.dumps([{}] * 101).encode(), "application/json", 400, "validation"),
        (b"{}", "text/plain", 415, "unsupported-media-type"),
        (b'"' + b"x" * 1_000_000 + b'"', "application/json", 413, "too-large"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_as_a_whole(api, body, content_type, status, slug):
    assert_problem(api.post(URL, body, **{"Content-Type": content_type}), status, slug)


def test_the_limits_are_for_each_event_where_they_can_be(api):
    deep: Any = {}
    for _ in range(200):
        deep = {"deep": deep}
    answer = api.post(URL, [paid(order(), data={"orderId": "x", "deep": deep}), paid(order())])
    assert results(answer) == ["refused", "processed"]
    assert results(api.post(URL, b"[" + json.dumps(paid(order()))[:-1].encode() + b', "n": NaN}]')) == [
        "refused"
    ]
    assert results(api.post(URL, [paid(order()) for _ in range(100)])) == ["processed"] * 100
    assert api.post(URL, []).json() == {"results": []}


def test_a_cloud_event_in_each_mode_is_the_same_event(api):
    placed = order()
    event = paid(placed)
    structured = cloud(event, subject=str(placed.id), correlationid="their-work")
    del structured["data"]["orderId"]  # the subject is the order's id
    assert api.post(URL, structured, **{"Content-Type": CE}).json()["result"] == "processed"
    assert EmailNotification.objects.get(event_type="order.paid").correlation_id == "their-work"
    assert results(api.post(URL, [structured], **{"Content-Type": f"{BATCH}; charset=utf-8"})) == ["repeated"]
    headers = {
        f"ce-{name}": value for name, value in structured.items() if name not in ("data", "datacontenttype")
    }
    binary = api.post(URL, {}, **headers)
    assert binary.json() == {"event_id": event["eventId"], "result": "repeated"}
    assert api.post(URL, event).json()["result"] == "repeated"


def test_the_attributes_of_binary_mode_are_percent_encoded_and_its_data_may_be_empty(api):
    placed, source = order(), "Kasse 1 ä"
    headers = {
        "ce-specversion": "1.0",
        "ce-id": new_id(),
        "ce-type": PAID,
        "ce-source": "Kasse%201%20%C3%A4",
        "ce-subject": str(placed.id),
    }
    answer = api.post(URL, None, **headers)
    assert answer.json()["result"] == "processed", answer.content
    assert ProcessedEvent.objects.get().source == source
    answer = api.post(URL, None, **headers | {"ce-id": new_id(), "ce-subject": "%00"})
    assert "NUL" in assert_problem(answer, 422, "unusable-event")["detail"]


def test_an_order_of_a_shop_as_a_cloud_event(api):
    event = cloud(told("paid", "A-1", 7))
    assert api.post(URL, event, **{"Content-Type": CE}).json()["result"] == "processed"
    stored = Order.objects.get(source=SHOP)
    assert (stored.reference, stored.version) == ("A-1001", 7)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"specversion": "0.3"}, "specversion"),
        ({"specversion": None}, "specversion"),
        ({"id": "not-a-uuid"}, "eventId"),
        ({"source": ""}, "source"),
        ({"type": 5}, "eventType"),
        ({"type": "payment.payment.succeeded"}, "version"),
        ({"datacontenttype": "text/xml"}, "datacontenttype"),
        ({"datacontenttype": 5}, "datacontenttype"),
        ({"subject": "another order"}, "subject"),
        ({"data_base64": "e30="}, "both"),
        ({"data": None, "data_base64": "not base64"}, "data_base64"),
        ({"data": None, "data_base64": 5}, "data_base64"),
        ({"data": None, "data_base64": "eA=="}, "must be JSON"),
        ({"data": [1]}, "data"),
    ],
)
def test_a_cloud_event_that_cannot_be_used_says_why(api, change, said):
    event = cloud(paid(order())) | change
    problem = assert_problem(api.post(URL, event, **{"Content-Type": CE}), 422, "unusable-event")
    assert said in problem["detail"]
    assert results(api.post(URL, [event, "x"], **{"Content-Type": BATCH})) == ["refused", "refused"]


def test_the_data_of_a_cloud_event_may_be_base64(api):
    placed = order()
    event = cloud(paid(placed))
    event["data_base64"] = base64.b64encode(json.dumps(event.pop("data")).encode()).decode()
    assert api.post(URL, event, **{"Content-Type": CE}).json()["result"] == "processed"
    assert status(placed) == "paid"


@pytest.mark.parametrize("error", [OperationalError("server closed"), InternalError("read-only transaction")])
def test_a_database_lost_in_the_middle_of_a_list_is_a_503_and_the_list_can_be_repeated(
    api, monkeypatch, error
):
    orders = [order() for _ in range(3)]
    events = [paid(order) for order in orders]
    pay = subscriptions.OTHER_SERVICES[PAID]

    def lost(event: Envelope) -> None:
        if event.data["orderId"] == str(orders[1].id):
            raise error
        pay(event)

    with monkeypatch.context() as broken:
        broken.setitem(subscriptions.OTHER_SERVICES, PAID, lost)
        answer = api.post(URL, events)
    assert_problem(answer, 503, "unavailable")
    assert answer.headers["Retry-After"]
    assert results(api.post(URL, events)) == ["repeated", "processed", "processed"]
    assert EmailNotification.objects.filter(event_type="order.paid").count() == 3


def test_a_fault_of_ours_stops_no_other_event_and_is_not_shown(api, monkeypatch):
    orders = [order() for _ in range(2)]

    def broken(event: Envelope) -> None:
        raise KeyError("secret")

    monkeypatch.setitem(subscriptions.OTHER_SERVICES, RESERVED, broken)
    bad = envelope(RESERVED, {"orderId": str(orders[0].id)})
    answer = api.post(URL, [bad, paid(orders[1])])
    assert results(answer) == ["refused", "processed"]
    assert b"secret" not in answer.content
    assert_problem(api.post(URL, bad), 500, "internal")


def test_two_requests_with_the_same_list_have_one_effect(api):
    orders = [order() for _ in range(10)]
    events = [paid(order) for order in orders]
    outcomes: list[str] = []

    def send() -> None:
        outcomes.extend(results(api.post(URL, events)))
        connection.close()

    threads = [threading.Thread(target=send) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["processed"] * 10 + ["repeated"] * 20
    assert EmailNotification.objects.filter(event_type="order.paid").count() == 10


def test_while_consumers_are_paused_no_event_is_taken(api, monkeypatch):
    monkeypatch.setattr(inbound, "_pause", PauseWatch(Pause.Part.CONSUMERS))
    placed = order()
    event = paid(placed)
    pauses.pause(parts=["consumers"], reason="", by=Actor(""))
    answer = api.post(URL, event)
    assert_problem(answer, 503, "paused")
    assert answer.headers["Retry-After"] and status(placed) == "pending"
    pauses.resume(parts=["consumers"], by=Actor(""))
    monkeypatch.setattr(inbound, "_pause", PauseWatch(Pause.Part.CONSUMERS))
    assert api.post(URL, event).json()["result"] == "processed"


def test_a_bad_token_is_refused_before_a_bad_body(api):
    for secret in ("op_unknown", ""):
        for body in ({"eventType": PAID}, "not an object", [1]):
            assert_problem(Api(secret).post(URL, body), 401, "unauthenticated")
        assert_problem(Api(secret).post(URL, paid(placed := order())), 401, "unauthenticated")
        assert status(placed) == "pending"


def test_it_needs_its_scope_and_a_token():
    assert_problem(Api().post(URL, {}), 401, "unauthenticated")
    secret = make_token(scopes=["orders:write"])
    assert_problem(Api(secret).post(URL, {}), 403, "forbidden")
    assert_problem(Api(make_token()).get(URL), 405, "method-not-allowed")


def test_stock_that_is_missing_cancels_with_the_customers_message(api):
    placed = order()
    event = envelope(INSUFFICIENT, {"orderId": str(placed.id), "customerMessage": "Sold out"})
    assert api.post(URL, event).json()["result"] == "processed"
    assert status(placed) == "cancelled"
    assert "Sold out" in EmailNotification.objects.get(event_type="order.cancelled").body_text


def test_a_list_costs_the_token_and_a_transaction_of_three_statements_for_each_event(api, monkeypatch):
    # Each is at most one more statement a second.
    monkeypatch.setattr(inbound, "_check_pause", lambda: None)
    monkeypatch.setattr(inbound, "TOKEN_SECONDS", math.inf)
    orders = [order() for _ in range(50)]
    events = [*map(paid, orders), *(envelope(RESERVED, {"orderId": str(order.id)}) for order in orders)]
    with CaptureQueriesContext(connection) as captured:
        assert results(api.post(URL, events)) == ["processed"] * 100
    assert len(captured) <= 1 + 100 * (3 + 2)  # Django counts BEGIN and COMMIT


def test_an_event_alone_costs_the_token_and_three_statements(api, monkeypatch):
    monkeypatch.setattr(inbound, "_check_pause", lambda: None)
    event = paid(order())
    with CaptureQueriesContext(connection) as captured:
        assert api.post(URL, event).status_code == 200
    assert len(captured) <= 1 + 3 + 2  # Django counts BEGIN and COMMIT


def test_a_list_whose_time_is_over_is_answered_503_and_can_be_sent_again(api, monkeypatch):
    monkeypatch.setattr(inbound, "LIST_SECONDS", -1.0)
    answer = api.post(URL, [paid(order())])
    assert_problem(answer, 503, "unavailable")
    assert answer.headers["Retry-After"] == "1"
    assert Order.objects.get().status == "pending"
