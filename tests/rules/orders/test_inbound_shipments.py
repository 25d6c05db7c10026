"""Parcels by events: a warehouse's about our orders, and other systems' about theirs."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from typing import Any

import pytest

from orders.models import Shipment
from tests.kit.events import SHOP, envelope, give, give_about, handle, new_id, received, tell, told
from tests.kit.orders import cancel_order, make_order, pay_order, place_order, return_shipment, ship_order
from tests.kit.words import (
    ERASED_ADDRESS,
    DomainEvent,
    EmailNotification,
    InboundDeadLetter,
    Order,
    read_timeline,
)

pytestmark = pytest.mark.django_db
CREATED, DELIVERED, RETURNED = (
    f"fulfilment.shipment.{change}.v1" for change in ("created", "delivered", "returned")
)
ITEMS = [
    {"sku": "MUG", "name": "Mug", "quantity": 2, "unit_amount": 300},
    {"sku": "TEA", "name": "Tea", "quantity": 1, "unit_amount": 400},
]
MUG, REST = [{"item": 0, "quantity": 1}], [{"item": 0, "quantity": 1}, {"item": 1, "quantity": 1}]
TRACKING = {"carrier": "DHL", "trackingNumber": "42", "trackingUrl": "https://parcels.example.com/42"}


@pytest.fixture(autouse=True)
def _sources(settings: Any) -> None:
    settings.ORDER_SOURCES = [SHOP]
    settings.FAST_PATH = False


@pytest.fixture
def order() -> Order:
    values = {"email": "ann@example.com", "total_amount": 1000, "items": ITEMS}
    return pay_order(order_id=place_order(user_id=new_id(), **values).id)


def parcels(order: Order) -> list[tuple[Any, ...]]:
    order.refresh_from_db()
    return [
        (row.reference, row.lines, bool(row.shipped_at), bool(row.delivered_at), bool(row.returned_at))
        for row in Shipment.objects.filter(order_id=order.id).order_by("reference")
    ]


def published(order: Order) -> list[str]:
    rows = DomainEvent.objects.filter(aggregate_id=order.id, event_type__startswith="order.shipment")
    return [row.event_type.split(".")[2] for row in rows.order_by("position")]


def warnings(order: Order) -> list[str]:
    order.refresh_from_db()
    return [line["text"] for line in order.warnings]


class TestWarehouse:
    def test_a_warehouse_tells_of_a_parcel_from_its_start_to_its_return(self, order):
        at = dt.datetime(2026, 11, 1, tzinfo=dt.UTC)
        assert (
            give_about(CREATED, order, reference="P-1", lines=MUG, shippedAt=at.isoformat(), **TRACKING)
            == "done"
        )
        row = Shipment.objects.get()
        assert (row.carrier, row.tracking_number, row.tracking_url) == tuple(TRACKING.values())
        assert (row.shipped_at, row.lines) == (at, MUG)
        for topic in (DELIVERED, RETURNED, DELIVERED):
            assert give_about(topic, order, reference="P-1") == "done"
        assert published(order) == ["created", "delivered", "returned"]
        assert parcels(order) == [("P-1", MUG, True, True, True)]
        assert (order.version, order.fulfilment) == (5, "none")

    def test_the_order_of_its_events_does_not_matter(self, order):
        give_about(RETURNED, order, reference="P-1")
        give_about(DELIVERED, order, reference="P-1")
        assert (parcels(order), order.version) == ([("P-1", [], False, True, True)], 2)
        give_about(CREATED, order, reference="P-1", lines=MUG)
        assert (parcels(order), order.version) == ([("P-1", MUG, True, True, True)], 5)
        assert published(order) == ["created", "delivered", "returned"]

    def test_the_api_and_the_warehouse_tell_of_one_parcel(self, order):
        ship_order(order_id=order.id, lines=MUG, reference="P-1", carrier="UPS")
        give_about(CREATED, order, reference="P-1", lines=REST, **TRACKING)
        row = Shipment.objects.get()
        assert (row.carrier, row.tracking_number, row.lines) == ("UPS", "42", MUG)
        assert published(order) == ["created", "updated"]

    def test_what_does_not_fit_is_stored_and_marked(self, order):
        many = [{"item": 0, "quantity": 3}, {"item": 7, "quantity": 1}]
        give_about(CREATED, order, reference="P-1", lines=many)
        assert parcels(order) == [("P-1", many, True, False, False)]
        assert warnings(order) == [
            "shipment: A line has an item that the order does not have.",
            "shipment: More left in parcels than was ordered.",
        ]
        assert any("More left" in entry.text for entry in read_timeline(order=order))
        cancelled = pay_order(order_id=make_order(items=ITEMS).id)
        cancel_order(order_id=cancelled.id)
        give_about(CREATED, cancelled, reference="P-1")
        assert parcels(cancelled) == [("P-1", [], True, False, False)]
        assert warnings(cancelled) == ["shipment: A parcel left though the order is cancelled."]

    @pytest.mark.parametrize(
        ("values", "about"),
        [
            ({"trackingUrl": "javascript:alert(1)"}, "trackingUrl"),
            ({"trackingNumber": "4" * 101}, "trackingNumber"),
            ({"carrier": "C" * 101}, "carrier"),
            ({"lines": [{"item": 0}]}, "lines"),
            ({"shippedAt": "yesterday"}, "shippedAt"),
        ],
    )
    def test_an_unusable_value_has_a_fallback(self, order, values, about):
        event = envelope(CREATED, {"orderId": str(order.id), "reference": "P-1", "lines": MUG} | values)
        assert handle(received(CREATED, event)) == "done"
        assert [text.partition(": ")[2].partition(":")[0] for text in warnings(order)] == [about]
        row = Shipment.objects.get()
        assert row.shipped_at and row.lines == ([] if about == "lines" else MUG)
        assert (row.tracking_number, row.tracking_url) == ("", "")
        assert row.carrier == ("C" * 99 + "…" if about == "carrier" else "")

    @pytest.mark.parametrize(
        ("name", "topic"), [("shippedAt", CREATED), ("deliveredAt", DELIVERED), ("returnedAt", RETURNED)]
    )
    @pytest.mark.parametrize(
        ("days", "fault"),
        [(1, "It is in the future."), (-400, "It is more than a year before the order.")],
        ids=["in the future", "long before the order"],
    )
    def test_a_time_that_cannot_be_becomes_that_of_the_event(self, order, name, topic, days, fault):
        at = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=5)
        data = {"orderId": str(order.id), "reference": "P-1", name: (at + dt.timedelta(days)).isoformat()}
        assert handle(received(topic, envelope(topic, data, timestamp=at.isoformat()))) == "done"
        column = {"shippedAt": "shipped_at", "deliveredAt": "delivered_at", "returnedAt": "returned_at"}[name]
        assert getattr(Shipment.objects.get(), column) == at
        assert warnings(order) == [f"shipment: {name}: {fault} The event's time is used."]

    def test_clocks_that_differ_by_less_than_a_minute_are_no_fault(self, order):
        at = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=30)
        give_about(CREATED, order, reference="P-1", shippedAt=at.isoformat())
        row = Shipment.objects.get()
        assert row.shipped_at is not None and row.shipped_at < at and warnings(order) == []

    @pytest.mark.parametrize("reference", [None, "", "ann@example.com", "R" * 101, 5])
    @pytest.mark.parametrize("topic", [CREATED, DELIVERED, RETURNED])
    def test_only_its_reference_refuses_it(self, order, topic, reference):
        assert give_about(topic, order, reference=reference) == "dead"
        assert "data.reference" in InboundDeadLetter.objects.get().error
        assert parcels(order) == []

    def test_it_knows_nothing_of_other_systems_orders(self, order):
        other = make_order(source=SHOP, status="paid")
        assert give_about(CREATED, other, reference="P-1") == "dead"
        assert "belongs to" in InboundDeadLetter.objects.get().error

    def test_an_erased_persons_parcel_has_no_tracking(self, order):
        Order.objects.update(email=ERASED_ADDRESS)
        give_about(CREATED, order, reference="P-1", lines=MUG, **TRACKING)
        row = Shipment.objects.get()
        assert (row.carrier, row.tracking_number, row.tracking_url, row.lines) == ("", "", "", MUG)


def parcel(reference: str = "P-1", **values: Any) -> dict[str, Any]:
    return {"shipment": {"reference": reference} | values}


def mails(order_id: str) -> list[tuple[str, int | None]]:
    rows = EmailNotification.objects.filter(
        order_id=order_id, event_type__in=("order.shipped", "order.delivered")
    )
    return [(row.event_type, row.order_version) for row in rows.order_by("id")]


@pytest.fixture
def mailed(settings: Any) -> None:
    if "order.shipped" not in settings.NOTIFY_ON:
        pytest.skip("shipments have no e-mails yet")  # pragma: no cover
    settings.NOTIFY_ON = [*settings.NOTIFY_ON, "order.delivered"]


class TestOtherSystems:
    def test_an_order_leaves_in_two_parcels(self):
        id = new_id()
        tell("paid", id, 2)
        half = [{"item": 0, "quantity": 1}]
        assert tell("shipped", id, 3, **parcel(lines=half, **TRACKING)) == "done"
        order = Order.objects.get(id=id)
        assert (order.fulfilment, order.version, order.status) == ("part_shipped", 3, "paid")
        tell("shipped", id, 4, **parcel("P-2", lines=half))
        assert parcels(order) == [("P-1", half, True, False, False), ("P-2", half, True, False, False)]
        assert order.fulfilment == "shipped"
        for sequence, reference in enumerate(("P-1", "P-2"), 5):
            ended = {"shippedAt": "2026-11-20T10:00:00Z", "deliveredAt": "2026-11-21T10:00:00Z"}
            tell("shipped", id, sequence, **parcel(reference, lines=half, **ended))
        order.refresh_from_db()
        assert (order.fulfilment, order.version) == ("delivered", 6)
        assert published(order) == []

    def test_the_highest_sequence_decides_for_each_parcel(self):
        reports = [
            (2, parcel(trackingNumber="41")),
            (3, parcel("P-2", trackingNumber="52")),
            (4, parcel(trackingNumber="42")),
            (5, parcel(trackingNumber="42", returnedAt="2026-11-22T10:00:00Z")),
        ]
        for shuffled in itertools.permutations(reports):
            id = new_id()
            for sequence, data in shuffled:
                assert tell("shipped", id, sequence, **data) == "done"
            rows = Shipment.objects.filter(order_id=id).order_by("reference")
            assert [(row.tracking_number, row.sequence, bool(row.returned_at)) for row in rows] == [
                ("42", 5, True),
                ("52", 3, False),
            ]
            order = Order.objects.get(id=id)
            assert (order.version, order.fulfilment) == (5, "shipped")

    @pytest.mark.usefixtures("mailed")
    def test_each_parcel_is_mailed_once_however_its_reports_arrive(self):
        ended = {"deliveredAt": "2026-11-22T10:00:00Z"}
        reports = [(2, parcel()), (3, parcel("P-2")), (4, parcel(trackingNumber="42")), (5, parcel(**ended))]
        chance = random.Random(7)
        for _ in range(10):
            id = new_id()
            shuffled = chance.sample([*reports, *reports], 8)
            for sequence, data in shuffled:
                tell("shipped", id, sequence, **data)
            sent = [name for name, _ in mails(id)]
            order = [sequence for sequence, _ in shuffled]
            is_news = min(order.index(2), order.index(4)) < order.index(5)
            assert sorted(sent) == ["order.delivered"] + ["order.shipped"] * (2 if is_news else 1)

    @pytest.mark.usefixtures("mailed")
    @pytest.mark.parametrize("reports", list(itertools.permutations((3, 4, 5))))
    def test_a_delivery_is_a_fact_whichever_report_tells_of_it(self, reports):
        id = new_id()
        tell("shipped", id, 2, **parcel())
        for sequence in reports:
            ended = {} if sequence == 4 else {"deliveredAt": f"2026-11-2{sequence}T10:00:00Z"}
            tell("shipped", id, sequence, **parcel(**ended))
        row = Shipment.objects.get()
        assert row.delivered_at == dt.datetime(2026, 11, 23, 10, tzinfo=dt.UTC)
        assert [name for name, _ in mails(id)] == ["order.shipped", "order.delivered"]

    @pytest.mark.usefixtures("mailed")
    @pytest.mark.parametrize("reports", list(itertools.permutations((2, 3, 4))))
    def test_a_parcel_that_came_back_is_not_on_its_way_nor_delivered(self, reports):
        id, at = new_id(), "2026-11-22T10:00:00Z"
        ends = {2: {}, 3: {"returnedAt": at}, 4: {"returnedAt": at, "deliveredAt": at}}
        for sequence in reports:
            tell("shipped", id, sequence, **parcel(**ends[sequence]))
        assert [name for name, _ in mails(id)] == (["order.shipped"] if reports[0] == 2 else [])

    def test_a_line_of_no_item_and_a_time_that_cannot_be_are_told(self):
        id = new_id()
        lines = [{"item": 0, "quantity": 1}, {"item": 1, "quantity": 1}]
        event = told("shipped", id, 2, **parcel(lines=lines, shippedAt="2024-01-01T10:00:00Z"))
        assert give(event) == "done"
        row = Shipment.objects.get()
        assert row.shipped_at == dt.datetime.fromisoformat(event["timestamp"]) and row.lines == lines
        assert [line["text"].partition(": shipment.")[2] for line in Order.objects.get().warnings] == [
            "lines: A line has an item that the order does not have.",
            "shippedAt: It is more than a year before the order. The event's time is used.",
        ]

    def test_history_sends_nothing(self):
        id = new_id()
        tell("shipped", id, 2, notify=False, **parcel(lines=[{"item": 0, "quantity": 2}]))
        assert mails(id) == [] and Order.objects.get(id=id).fulfilment == "shipped"
        tell("shipped", id, 3, **parcel(lines=[{"item": 0, "quantity": 2}], trackingNumber="42"))
        assert mails(id) == []

    def test_a_completion_expects_no_more_parcels(self):
        for changes in (("shipped", "completed"), ("completed", "shipped")):
            id = new_id()
            for sequence, change in enumerate(changes, 2):
                more = parcel(lines=[{"item": 0, "quantity": 1}]) if change == "shipped" else {}
                status = "completed" if "completed" in changes[: sequence - 1] else "paid"
                assert tell(change, id, sequence, **{"status": status} | more) == "done"
            assert Order.objects.get(id=id).fulfilment == "shipped"

    def test_an_unreadable_time_is_that_of_the_event_and_a_bad_number_is_left_out(self):
        id = new_id()
        event = told("shipped", id, 2, **parcel(deliveredAt="soon", trackingNumber="4" * 101))
        assert give(event) == "done"
        row = Shipment.objects.get()
        assert row.delivered_at == dt.datetime.fromisoformat(event["timestamp"])
        assert row.tracking_number == "" and row.returned_at is None
        texts = [line["text"] for line in Order.objects.get().warnings]
        assert [text.split(": ")[1] for text in texts] == ["shipment.trackingNumber", "shipment.deliveredAt"]

    @pytest.mark.parametrize(
        "data", [{"shipment": None}, {"shipment": {}}, {"shipment": "P-1"}, {"status": "pending"}]
    )
    def test_a_parcel_without_a_reference_and_one_of_a_pending_order_are_refused(self, data):
        assert tell("shipped", new_id(), 2, **data) == "dead"
        assert not Order.objects.exists()

    def test_an_erased_persons_parcel_has_no_tracking(self):
        id = new_id()
        tell("paid", id, 2)
        Order.objects.update(email=ERASED_ADDRESS)
        tell("shipped", id, 3, **parcel(**TRACKING))
        row = Shipment.objects.get()
        assert (row.carrier, row.tracking_number, row.tracking_url) == ("", "", "")

    def test_our_own_api_does_not_change_them(self):
        id = new_id()
        tell("shipped", id, 2, **parcel())
        with pytest.raises(Exception, match="belongs to"):
            return_shipment(order_id=Order.objects.get().id, shipment_id=Shipment.objects.get().id)
