"""Sources cannot harm each other through ids that both may use, and only an effect makes a repeat."""

from __future__ import annotations

import datetime as dt
import json

import pytest
from django.db import OperationalError

from notifications.log import act_on_email
from runtime.audit import Actor
from runtime.database.ids import parse_uuid
from runtime.models import AuditRow
from tests.kit.acts import record_now
from tests.kit.api import Api, make_token
from tests.kit.events import PAID, REFUNDED, SHOP, envelope, give, handle, new_id, order, received, tell, told
from tests.kit.words import (
    HANDLERS,
    NAME,
    REGISTRY,
    EmailNotification,
    InboundDeadLetter,
    Order,
    ProcessedEvent,
    our_id,
    replay_next,
    subscriptions,
)

URL, OTHER = "/api/v1/events", "shop-b"

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("two_shops")]


def result(answer) -> str | None:
    text: str | None = answer.json().get("result")
    return text


def test_an_order_with_the_id_of_a_dead_letter_does_not_show_it(bound):
    victim = told("paid", new_id(), 1, source=OTHER, email="secret@victim.example", totalAmount="x")
    assert give(victim) == "dead"
    assert result(bound.post(URL, told("placed", victim["eventId"], 1))) == "processed"
    for path in ("events", "timeline"):
        shown = bound.get(f"/api/v1/orders/{victim['eventId']}/{path}")
        assert shown.status_code == 200 and b"victim" not in shown.content and b".dlt" not in shown.content


def test_an_order_with_the_id_of_an_email_does_not_show_what_people_did_to_it(bound):
    tell("paid", new_id(), 1, source=OTHER)
    mail = EmailNotification.objects.get()
    record_now(act_on_email(mail, kind=AuditRow.Kind.COPY, act="Copied."), by=Actor("boss-login"))
    assert result(bound.post(URL, told("placed", str(mail.id), 1))) == "processed"
    assert b"boss-login" not in bound.get(f"/api/v1/orders/{mail.id}/timeline").content


def test_a_source_can_neither_take_nor_probe_the_computed_ids_of_another(bound):
    tell("paid", "A-1002", 1, source=OTHER)
    answers = [
        bound.post(URL, told("placed", str(our_id(source=OTHER, id=number)), 1)).status_code
        for number in ("A-1002", "A-1003")
    ]
    assert answers == [200, 200]
    assert tell("paid", "A-1003", 1, source=OTHER) == "done"


@pytest.mark.parametrize("id", [None, "A-7", "6fa459ea-ee8a-3ca4-894e-db77e160355e", "0" * 32])
def test_a_source_learns_of_a_uuid_that_it_is_anothers_but_not_whose(bound, id):
    id = id or str(new_id())
    assert tell("paid", id, 1, source=OTHER) == "done"
    answer = bound.post(URL, told("placed", id, 1))
    is_uuid = parse_uuid(id) is not None and parse_uuid(id).int
    assert answer.status_code == (422 if is_uuid else 200)
    assert OTHER not in answer.content.decode() and OTHER not in str(answer.headers)
    assert Order.objects.count() == (1 if is_uuid else 2)


def test_ids_that_are_no_uuids_never_meet():
    for id in (
        "A-1",
        "1",
        "0",
        "00000000-0000-0000-0000-000000000000",
        "886313e1-3b8a-5372-9b90-0c9aee199e5d",
    ):
        assert our_id(source=OTHER, id=id) != our_id(source=SHOP, id=id)
        assert our_id(source=OTHER, id=str(our_id(source=SHOP, id=id))) != our_id(source=SHOP, id=id)


def test_an_event_id_that_another_source_used_swallows_no_event_and_tells_nothing(bound):
    over_broker, over_http = (told("paid", new_id(), 1, source=OTHER) for _ in range(2))
    probes = [told("placed", "", 1) | {"eventId": event["eventId"]} for event in (over_broker, over_http)]
    before = [bound.post(URL, probe).json()["detail"] for probe in probes]
    for event in (over_broker, over_http):
        squatter = told("placed", new_id(), 1) | {"eventId": event["eventId"]}
        assert result(bound.post(URL, squatter)) == "processed"
        assert result(bound.post(URL, squatter)) == "repeated"
    other = Api(make_token(source=OTHER))
    assert give(over_broker) == "done" and give(over_broker) == "repeat"
    assert [result(other.post(URL, over_http)) for _ in range(2)] == ["processed", "repeated"]
    assert Order.objects.filter(source=OTHER).count() == 2
    assert EmailNotification.objects.filter(event_type="order.paid").count() == 2
    counts = dict(ProcessedEvent.objects.values_list("event_id", "receive_count"))
    unseen = told("placed", "", 1) | {"eventId": new_id()}
    assert bound.post(URL, unseen).json()["detail"] == before[0] == before[1]
    assert dict(ProcessedEvent.objects.values_list("event_id", "receive_count")) == counts


def test_two_shops_behind_one_gateway_may_use_one_event_id(api):
    first = told("paid", new_id(), 1) | {"source": "gateway"}
    second = told("paid", new_id(), 1, source=OTHER) | {"source": "gateway", "eventId": first["eventId"]}
    assert [result(api.post(URL, each)) for each in (first, second)] == ["processed", "processed"]
    assert [result(api.post(URL, each)) for each in (first, second)] == ["repeated", "repeated"]


def test_an_event_through_a_gateway_over_the_broker_is_the_same_over_http(api):
    event = told("paid", new_id(), 1)
    assert give(event | {"source": "gateway"}) == "done"
    assert result(api.post(URL, event)) == "repeated"


def test_a_dead_letter_is_no_repeat_until_it_was_replayed(api):
    event = told("paid", new_id(), 1, totalAmount="x")
    assert give(event) == "dead"
    corrected = told("paid", event["data"]["orderId"], 1) | {"eventId": event["eventId"]}
    assert "dead letter" in api.post(URL, corrected).json()["detail"]
    unreadable = told("paid", new_id(), 1)
    assert handle(received(unreadable["eventType"], unreadable | {"version": 2})) == "dead"
    assert "dead letter" in api.post(URL, unreadable).json()["detail"]
    InboundDeadLetter.objects.filter(event_id=event["eventId"]).update(replayed_at=dt.datetime.now(dt.UTC))
    assert result(api.post(URL, corrected)) == "repeated"


def test_the_dead_letter_of_one_source_does_not_concern_the_event_of_another(settings, bound, api):
    settings.ORDER_SOURCES = [SHOP]
    own = told("paid", new_id(), 1)
    other = told("paid", new_id(), 1, source=OTHER) | {"eventId": own["eventId"]}
    assert [give(own), give(other), give(other)] == ["done", "dead", "repeat"]
    assert result(bound.post(URL, own)) == "repeated"
    settings.ORDER_SOURCES = [SHOP, OTHER]
    assert "dead letter" in api.post(URL, other).json()["detail"]
    InboundDeadLetter.objects.request_replay(ids=[InboundDeadLetter.objects.get().id])
    assert replay_next(consumer=NAME, handlers=HANDLERS) is not None
    assert [result(api.post(URL, event)) for event in (own, other)] == ["repeated"] * 2
    assert EmailNotification.objects.count() == 2


@pytest.mark.parametrize(
    "broken",
    [{"version": 2}, {"data": {"name": "Bo\x00b"}}, {"data": {"name": "x" * 1_000_000}}],
    ids=["version", "NUL", "too large"],
)
def test_an_unreadable_event_of_one_source_swallows_no_event_of_another(bound, broken):
    """Shops whose connectors compute ids of the order's number have the same ids."""
    event = told("paid", new_id(), 1, source=OTHER) | broken
    assert handle(received(event["eventType"], event)) == "dead"
    own = told("paid", new_id(), 1) | {"eventId": event["eventId"]}
    other = told("paid", new_id(), 2) | {"eventId": event["eventId"]}
    assert [give(own), give(other)] == ["done", "repeat"]
    assert EmailNotification.objects.count() == 1
    corrected = told("paid", new_id(), 1, source=OTHER) | {"eventId": event["eventId"]}
    assert "dead letter" in Api(make_token()).post(URL, corrected).json()["detail"]


def test_two_sources_with_one_event_id_have_a_dead_letter_each(two_shops):
    first = told("paid", new_id(), 1, totalAmount="x")
    second = told("paid", new_id(), 1, source=OTHER, totalAmount="x") | {"eventId": first["eventId"]}
    outcomes = [give(event) for event in (first, second, first, second)]
    assert outcomes == ["dead", "dead", "repeat", "repeat"]
    assert InboundDeadLetter.objects.count() == 2


def test_a_letter_that_the_inbox_forgot_is_not_replayed_after_its_event_came_over_http(api):
    placed = order()
    event = envelope(REFUNDED, {"orderId": str(placed.id), "amount": 100})
    assert handle(received(REFUNDED, event)) == "dead"
    letter = InboundDeadLetter.objects.get()
    old = dt.datetime.now(dt.UTC) - dt.timedelta(days=40)
    aged = f"{int(old.timestamp() * 1000):012x}"
    letter_id = f"{aged[:8]}-{aged[8:]}{str(letter.id)[13:]}"
    InboundDeadLetter.objects.filter(id=letter.id).update(id=letter_id)
    ProcessedEvent.objects.all().delete()
    for call in ("pay", "confirm", "complete"):
        assert api.post(f"/api/v1/orders/{placed.id}/{call}").status_code == 200
    assert result(api.post(URL, event)) == "processed"
    InboundDeadLetter.objects.request_replay(ids=[letter_id])
    assert replay_next(consumer=NAME, handlers=HANDLERS) is not None
    placed.refresh_from_db()
    assert placed.refunded_amount == 100
    assert "was processed at" in InboundDeadLetter.objects.get().error


def test_a_letter_that_the_inbox_forgot_can_be_replayed(api):
    placed = order()
    event = envelope(REFUNDED, {"orderId": str(placed.id), "amount": 100})
    assert handle(received(REFUNDED, event)) == "dead"
    ProcessedEvent.objects.all().delete()
    for call in ("pay", "confirm", "complete"):
        api.post(f"/api/v1/orders/{placed.id}/{call}")
    InboundDeadLetter.objects.request_replay(ids=[InboundDeadLetter.objects.get().id])
    assert replay_next(consumer=NAME, handlers=HANDLERS) is not None
    placed.refresh_from_db()
    assert placed.refunded_amount == 100


@pytest.mark.parametrize(
    "time", [1577836800, "Wed, 01 Jan 2020 00:00:00 GMT", "2020-01-01 00:00 +0000 UTC", ""]
)
def test_a_time_that_cannot_be_read_does_not_count_as_none(api, time):
    event = envelope(PAID, {"orderId": str(order().id)}) | {"timestamp": time}
    assert "timestamp" in api.post(URL, event).json()["detail"]


def test_refusals_quote_no_values_and_their_lines_are_short(api, caplog):
    data = {"orderId": new_id(), "amount": {"name": "Ann Victim", "iban": "DE89370400440532013000"}}
    api.post(URL, envelope(REFUNDED, data))
    answer = api.post(URL, told("paid", new_id(), 1) | {"version": "Ann Victim; " + "x" * 100_000})
    assert len(answer.content) < 2000
    lines = [record.getMessage() for record in caplog.records]
    assert not [line for line in lines if "Victim" in line or len(line) > 5000]


@pytest.mark.parametrize("bad", ["1" + "0" * 5000, "[" * 200 + "]" * 200, "1e999", "NaN"])
def test_a_value_that_no_row_could_hold_refuses_its_event_alone(api, bad):
    good = json.dumps(envelope(PAID, {"orderId": str(order().id)})).encode()
    answer = api.post(URL, b'[{"n": ' + bad.encode() + b"}, " + good + b"]")
    assert [result["result"] for result in answer.json()["results"]] == ["refused", "processed"]


def test_the_headers_of_binary_mode_may_be_quoted_strings(api):
    headers = {
        "ce-specversion": "1.0",
        "ce-id": f'"{new_id()}"',
        "ce-type": PAID,
        "ce-source": '"pay \\"quick\\""',
        "ce-subject": str(order().id),
    }
    assert result(api.post(URL, None, **headers)) == "processed"
    assert ProcessedEvent.objects.get().source == 'pay "quick"'


def test_an_outage_does_not_count_as_rejected_events(api, monkeypatch):
    def away(event):
        raise OperationalError("server closed")

    def count(result: str) -> float:
        labels = {"topic": PAID, "result": result}
        return REGISTRY.get_sample_value("orderpost_inbox_events_total", labels) or 0.0

    monkeypatch.setitem(subscriptions.OTHER_SERVICES, PAID, away)
    before = count("rejected"), count("retried")
    assert api.post(URL, envelope(PAID, {"orderId": str(order().id)})).status_code == 503
    assert (count("rejected"), count("retried")) == (before[0], before[1] + 1)
