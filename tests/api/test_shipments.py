"""The API of shipments: send a parcel, correct it, record its delivery and its return."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.kit.api import Api, assert_problem, make_token, row_counts
from tests.kit.orders import make_order
from tests.kit.words import ERASED_ADDRESS, Order

pytestmark = pytest.mark.django_db(transaction=True)
ITEMS = [
    {"sku": "MUG", "name": "Mug", "quantity": 2, "unit_amount": 300},
    {"sku": "TEA", "name": "Tea", "quantity": 1, "unit_amount": 400},
]
NOTHING = {"delivered_at": None, "returned_at": None}
UNKNOWN = "01890000-0000-7000-8000-000000000009"


@pytest.fixture
def path(api: Api) -> str:
    """Return the path of a paid order."""
    place = api.place(items=ITEMS)
    assert api.post(f"{place}/pay").status_code == 200
    return place


def lines(*wanted: tuple[int, int]) -> dict[str, Any]:
    return {"lines": [{"item": item, "quantity": quantity} for item, quantity in wanted]}


def test_an_order_leaves_in_two_parcels(api, path):
    first = api.post(
        f"{path}/shipments",
        {
            **lines((0, 1)),
            "reference": "P-1",
            "carrier": "DHL",
            "tracking_number": "42",
            "tracking_url": "https://parcels.example.com/42",
            "shipped_at": "2026-01-02T03:04:05Z",
        },
    )
    assert first.status_code == 201
    parcel, order_id = first.json(), path.rpartition("/")[2]
    assert first.headers["Location"] == f"{path}/shipments/{parcel['id']}"
    assert parcel == NOTHING | {
        "id": parcel["id"],
        "order_id": order_id,
        "reference": "P-1",
        "carrier": "DHL",
        "tracking_number": "42",
        "tracking_url": "https://parcels.example.com/42",
        "lines": [{"item": 0, "quantity": 1}],
        "shipped_at": "2026-01-02T03:04:05Z",
    }
    order = api.get(path).json()
    assert (order["fulfilment"], order["version"], order["status"]) == ("part_shipped", 3, "paid")

    rest = api.post(f"{path}/shipments").json()
    assert rest["lines"] == [{"item": 0, "quantity": 1}, {"item": 1, "quantity": 1}]
    assert (rest["reference"], rest["carrier"]) == (None, "")
    order = api.get(path).json()
    assert (order["fulfilment"], order["shipments"]) == ("shipped", [parcel, rest])

    for shipment in (parcel, rest):
        answer = api.post(f"{path}/shipments/{shipment['id']}/delivered")
        assert answer.status_code == 200 and answer.json()["delivered_at"] is not None
    assert api.get(path).json()["fulfilment"] == "delivered"
    assert api.get(f"{path}/shipments/{parcel['id']}").json() == api.get(path).json()["shipments"][0]
    assert api.get("/api/v1/orders").json()["results"][0]["fulfilment"] == "delivered"


def test_too_much_is_a_problem_that_names_what_is_left_and_a_return_frees_it(api, path):
    parcel = api.post(f"{path}/shipments", lines((0, 2))).json()
    before = row_counts()
    for wanted in (lines((0, 1)), lines((1, 2)), lines((1, 1), (1, 1)), lines((2, 1))):
        problem = assert_problem(api.post(f"{path}/shipments", wanted), 409, "more-than-ordered")
        assert problem["left"] == [{"item": 0, "quantity": 0}, {"item": 1, "quantity": 1}]
    assert row_counts() == before
    assert api.post(f"{path}/shipments/{parcel['id']}/returned").json()["returned_at"] is not None
    assert api.get(path).json()["fulfilment"] == "none"
    assert api.post(f"{path}/shipments").json()["lines"] == [
        {"item": 0, "quantity": 2},
        {"item": 1, "quantity": 1},
    ]
    detail = assert_problem(api.post(f"{path}/shipments"), 409, "more-than-ordered")["detail"]
    assert detail.startswith("Nothing is left to ship")
    assert [shipment["returned_at"] is None for shipment in api.get(path).json()["shipments"]] == [
        False,
        True,
    ]


def test_a_reference_counts_once_and_its_repeat_fills_in_the_tracking_that_is_missing(api, path):
    first = api.post(f"{path}/shipments", {"reference": "P-1", "carrier": "DHL"}).json()
    repeat = {"reference": "P-1", "carrier": "UPS", "tracking_number": "42"}
    again = api.post(f"{path}/shipments", repeat)
    assert again.status_code == 201
    assert again.json() == first | {"tracking_number": "42"}
    assert api.post(f"{path}/shipments", repeat).json() == again.json()
    order = api.get(path).json()
    assert (order["version"], len(order["shipments"])) == (4, 1)


def test_a_corrected_number_changes_the_order_and_an_equal_one_does_not(api, path):
    parcel = api.post(f"{path}/shipments", {"carrier": "DHL", "tracking_number": "41"}).json()
    place = f"{path}/shipments/{parcel['id']}"
    corrected = api.request("PATCH", place, {"tracking_number": "42"})
    assert (corrected.status_code, corrected.json()) == (200, parcel | {"tracking_number": "42"})
    before = row_counts()
    assert api.request("PATCH", place, {"tracking_number": "42"}).json() == corrected.json()
    assert api.get(path).json()["version"] == 4
    assert row_counts()["outbox_events"] == before["outbox_events"]
    assert api.request("PATCH", place, {"carrier": ""}).json()["carrier"] == ""


@pytest.mark.parametrize("action", ["delivered", "returned"])
def test_an_end_counts_once(api, path, action):
    place = f"{path}/shipments/{api.post(f'{path}/shipments').json()['id']}/{action}"
    first = api.post(place)
    before = row_counts()
    assert api.post(place).json() == first.json()
    assert row_counts()["outbox_events"] == before["outbox_events"]


def test_a_repeat_under_its_key_is_the_stored_answer(api, path):
    first = api.post(f"{path}/shipments", lines((0, 1)), key="a")
    again = api.post(f"{path}/shipments", lines((0, 1)), key="a")
    assert again.content == first.content and again.headers["Idempotency-Replayed"] == "true"
    assert again.headers["Location"] == first.headers["Location"]
    assert_problem(api.post(f"{path}/shipments", lines((1, 1)), key="a"), 422, "idempotency-key-reused")
    place, key = f"{path}/shipments/{first.json()['id']}", {"Idempotency-Key": "b"}
    patched = api.request("PATCH", place, {"carrier": "DHL"}, **key)
    api.request("PATCH", place, {"carrier": "UPS"})
    replayed = api.request("PATCH", place, {"carrier": "DHL"}, **key)
    assert replayed.content == patched.content and replayed.headers["Idempotency-Replayed"] == "true"


def test_only_an_order_that_is_paid_for_is_sent(api):
    pending = api.place(items=ITEMS)
    problem = assert_problem(api.post(f"{pending}/shipments"), 409, "invalid-transition")
    assert problem["current_status"] == "pending" and "pay" in problem["allowed_actions"]
    cancelled = api.place(items=ITEMS)
    api.post(f"{cancelled}/cancel")
    assert_problem(api.post(f"{cancelled}/shipments"), 409, "invalid-transition")
    refunded = api.place(items=ITEMS)
    api.post(f"{refunded}/pay")
    api.post(f"{refunded}/refund")
    assert_problem(api.post(f"{refunded}/shipments"), 409, "invalid-transition")


def test_another_systems_order_takes_no_shipments_here(api):
    order = make_order(source="shop-a", status="paid", items=ITEMS)
    path = f"/api/v1/orders/{order.id}"
    problem = assert_problem(api.post(f"{path}/shipments"), 409, "externally-owned")
    assert problem["source"] == "shop-a"
    assert "shipments" not in api.get(path).json()
    bound = Api(make_token(source="shop-b"))
    assert_problem(bound.post(f"{path}/shipments"), 404, "not-found")
    assert_problem(bound.get(f"{path}/shipments/{UNKNOWN}"), 404, "not-found")


def test_an_unknown_shipment_is_not_found_nor_is_one_of_another_order(api, path):
    other = api.place(items=ITEMS)
    parcel = api.post(f"{path}/shipments").json()
    for id in (UNKNOWN, "nonsense"):
        assert_problem(api.post(f"{path}/shipments/{id}/delivered"), 404, "not-found")
    for method, place in (
        ("GET", f"{other}/shipments/{parcel['id']}"),
        ("PATCH", f"{other}/shipments/{parcel['id']}"),
        ("POST", f"{other}/shipments/{parcel['id']}/returned"),
    ):
        assert_problem(api.request(method, place), 404, "not-found")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (lines((0, 0)), "#/lines/0/quantity"),
        (lines((-1, 1)), "#/lines/0/item"),
        ({"lines": []}, "#/lines"),
        ({"lines": [{"item": 0}]}, "#/lines/0/quantity"),
        ({"lines": [{"item": True, "quantity": 1}]}, "#/lines/0/item"),
        ({"tracking_url": "javascript:alert(1)"}, "#/tracking_url"),
        ({"tracking_url": "https://www.dhl.com@evil.example/x"}, "#/tracking_url"),
        ({"tracking_number": "x" * 101}, "#/tracking_number"),
        ({"reference": "ann@example.com"}, "#/reference"),
        ({"shipped_at": "yesterday"}, "#/shipped_at"),
        ({"carrier": 7}, "#/carrier"),
        ({"notify": True}, "#/notify"),
    ],
)
def test_bad_input_names_its_place_and_changes_nothing(api, path, body, pointer):
    before = row_counts()
    problem = assert_problem(api.post(f"{path}/shipments", body), 400, "validation")
    assert [error["pointer"] for error in problem["errors"]] == [pointer]
    assert row_counts() == before


@pytest.mark.parametrize(
    ("shift", "fault"),
    [
        (dt.timedelta(minutes=2), "It is in the future."),
        (dt.timedelta(days=36500), "It is in the future."),
        (-dt.timedelta(days=366), "It is more than a year before the order."),
        (None, "It is more than a year before the order."),
    ],
)
def test_a_time_at_which_no_parcel_can_have_left_is_refused_and_changes_nothing(api, path, shift, fault):
    at = "0001-01-01T00:00:00Z" if shift is None else (dt.datetime.now(dt.UTC) + shift).isoformat()
    before = row_counts()
    answer = api.post(f"{path}/shipments", {"reference": "P-1", "shipped_at": at}, key="k")
    problem = assert_problem(answer, 400, "validation")
    assert problem["errors"] == [{"pointer": "#/shipped_at", "detail": fault}]
    assert row_counts() == before
    assert api.post(f"{path}/shipments", {"reference": "P-1"}, key="k").status_code == 201


def test_a_shops_clock_may_be_some_seconds_ahead(api, path):
    at = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=30)
    answer = api.post(f"{path}/shipments", {"shipped_at": at.isoformat()})
    assert answer.status_code == 201 and answer.json()["shipped_at"] < at.isoformat()


def test_an_order_without_items_leaves_in_parcels_of_which_nobody_says_what_they_have(api):
    path = api.place()
    api.post(f"{path}/pay")
    assert api.post(f"{path}/shipments").json()["lines"] == []
    assert api.get(path).json()["fulfilment"] == "shipped"


def test_the_hundredth_shipment_is_the_last(api, path):
    for number in range(100):
        parcel = api.post(f"{path}/shipments", {"reference": f"P-{number}"})
        assert parcel.status_code == 201
        api.post(f"{path}/shipments/{parcel.json()['id']}/returned")
    assert_problem(api.post(f"{path}/shipments", {"reference": "P-100"}), 409, "too-many-shipments")


def test_complete_ships_what_is_left_and_sends_nothing_of_shipments(api, path):
    api.post(f"{path}/shipments", lines((0, 1)))
    completed = api.post(f"{path}/complete").json()
    assert (completed["status"], completed["fulfilment"]) == ("completed", "shipped")
    topics = [event["event_type"] for event in api.get(f"{path}/events").json()["results"]]
    assert topics[-2:] == ["order.shipment.created.v1", "order.order.completed.v1"]
    plain = api.place(items=ITEMS)
    api.post(f"{plain}/pay")
    assert api.post(f"{plain}/complete").json()["fulfilment"] == "none"


def test_an_order_without_shipments_is_read_in_one_statement_more_than_its_token(api, path):
    with CaptureQueriesContext(connection) as without:
        api.get(path)
    api.post(f"{path}/shipments")
    with CaptureQueriesContext(connection) as with_one:
        api.get(path)
    assert (len(without), len(with_one)) == (2, 3)


def test_an_erased_persons_parcel_gets_no_tracking(api, path):
    parcel = api.post(f"{path}/shipments").json()
    Order.objects.update(email=ERASED_ADDRESS)
    assert api.request("PATCH", f"{path}/shipments/{parcel['id']}", {"carrier": "DHL"}).json() == parcel
