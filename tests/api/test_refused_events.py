"""Refused events over HTTP are counted without their values and without a statement in the request."""

from __future__ import annotations

import pytest
from django.db import DatabaseError, connection
from django.test.utils import CaptureQueriesContext

from events.consuming import refusals
from events.models import RefusedEvent
from tests.kit.admin import LETTERS
from tests.kit.api import Api, make_token
from tests.kit.events import PAID, envelope
from tests.kit.people import staff_client
from tests.kit.waiting import replace_time
from tests.kit.words import heartbeat, new_id

pytestmark = pytest.mark.django_db
URL = "/api/v1/events"


@pytest.fixture(autouse=True)
def _new_process():
    refusals.forget()
    yield
    refusals.forget()


def refused(amount: object = 1) -> dict[str, object]:
    """Return an event of a payment for an order that does not exist."""
    return envelope(PAID, {"orderId": str(new_id()), "amount": amount, "currency": "USD"})


def rows() -> list[tuple[str, str, int]]:
    return sorted(RefusedEvent.objects.values_list("sender", "topic", "count"))


def test_a_refusal_costs_no_statement_and_the_process_writes_it_later(monkeypatch):
    class Slept(Exception):
        pass

    def sleep(_: float) -> None:
        raise Slept

    api = Api(make_token(name="shop-a"))
    with CaptureQueriesContext(connection) as captured:
        assert api.post(URL, refused()).status_code == 422
    assert not [query for query in captured if "refused_events" in query["sql"]] and rows() == []
    replace_time(monkeypatch, heartbeat, sleep=sleep)
    with pytest.raises(Slept):
        heartbeat.beat_forever()
    assert rows() == [("shop-a", PAID, 1)]


def test_a_flood_of_refusals_is_two_statements():
    api = Api(make_token(name="shop-a"))
    for _ in range(3):
        assert api.post(URL, [refused() for _ in range(20)]).status_code == 200
    with CaptureQueriesContext(connection) as captured:
        assert refusals.write() == 1
    assert len(captured) == 2 and rows() == [("shop-a", PAID, 60)]
    with CaptureQueriesContext(connection) as captured:
        assert refusals.write() == 0
    assert len(captured) == 0


def test_repeats_are_added_to_their_row_and_each_sender_topic_and_reason_has_its_own():
    for name in ("shop-a", "shop-b"):
        api = Api(make_token(name=name))
        for body in (refused(), refused(), refused("much"), refused() | {"eventType": "x.v1"}):
            api.post(URL, body)
            refusals.write()
    counts = [("PAID", 2), ("PAID", 1), ("unknown", 1)]
    for name in ("shop-a", "shop-b"):
        mine = sorted(count for sender, _, count in rows() if sender == name)
        assert mine == sorted(count for _, count in counts), rows()


def test_no_value_of_an_event_is_kept():
    api = Api(make_token(name="shop-a"))
    id = new_id()
    for body in (
        envelope(PAID, {"orderId": str(id), "amount": "lena@example.com", "currency": "USD"}),
        envelope("lena@example.com", {"orderId": str(id)}),
        envelope(PAID, {"orderId": "lena@example.com"}),
        refused() | {"eventId": "lena@example.com"},
        refused() | {"timestamp": "4929 1234"},
    ):
        assert api.post(URL, body).status_code == 422
    refusals.write()
    for row in RefusedEvent.objects.values_list("topic", "reason"):
        assert not any(value in text for text in row for value in ("lena", str(id), "4929")), row


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("its producer 'shop-c' is not in ORDER_SOURCES", "its producer … is not in ORDER_SOURCES"),
        ("the order's sum is of 1,200 USD, not 'it\\'s'", "the order's sum is of … USD, not …"),
        ('"a \\" b" is not a valid choice.', "… is not a valid choice."),
        ("There is no order 01a20c8d-f8ff-748a-b3a8-7f3857def3dd", "There is no order …"),
    ],
)
def test_a_reason_is_kept_without_what_it_repeats(reason, kept):
    assert refusals.without_values(reason) == kept


def test_at_most_so_many_rows_and_notes_are_kept_the_newest(monkeypatch):
    monkeypatch.setattr(refusals, "MOST", 3)
    for names in ("abcde", "fg"):
        for name in names:
            refusals.note(sender=name, topic="t", reason="r")
        refusals.write()
    assert len(rows()) == 3 and {"f", "g"} <= {sender for sender, _, _ in rows()}


def test_a_note_stays_while_the_database_is_away(monkeypatch):
    refusals.note(sender="a", topic="t", reason="r")
    with monkeypatch.context() as away:
        away.setattr(refusals.connection, "cursor", lambda: (_ for _ in ()).throw(DatabaseError()))
        with pytest.raises(DatabaseError):
            refusals.write()
    assert refusals.write() == 1


def test_the_page_is_under_inbound_for_whom_may_see_dead_letters(admin_client):
    refusals.note(sender="shop-a", topic=PAID, reason="its data are not a JSON object")
    refusals.write()
    assert b'href="/admin/events/inbounddeadletter/refused/"' in admin_client.get(LETTERS).content
    answer = staff_client("view_inbounddeadletter").get(f"{LETTERS}refused/")
    page = answer.content.decode()
    assert "shop-a" in page and "its data are not a JSON object" in page and ">1<" in page
    assert [item["title"] for item in answer.context["menu"] if item["here"]] == ["Inbound"]
    assert staff_client(name="nobody").get(f"{LETTERS}refused/").status_code == 403
