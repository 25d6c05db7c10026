"""Shipments, and the features that change orders and e-mails, too."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from orders.models import Shipment
from orders.transitions import ChangeRefused
from tests.kit.events import SHOP, give_about, new_id, tell
from tests.kit.mails import rendered_again
from tests.kit.months import Steps
from tests.kit.orders import (
    cancel_order,
    complete_order,
    correct_shipment,
    pay_order,
    place_order,
    refund_order,
    return_shipment,
    ship_order,
)
from tests.kit.profiles import save_profile
from tests.kit.races import together
from tests.kit.words import DomainEvent, EmailNotification, Order, erase_person

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])
ITEMS = [
    {"sku": "MUG", "name": "Mug", "quantity": 2, "unit_amount": 300},
    {"sku": "TEA", "name": "Tea", "quantity": 1, "unit_amount": 400},
]
CREATED = "fulfilment.shipment.created.v1"
TRACKING = {"carrier": "DHL", "tracking_number": "SECRET-42", "tracking_url": "https://x.example/SECRET-42"}


@pytest.fixture(autouse=True)
def _sources(settings: Any) -> None:
    settings.ORDER_SOURCES = [SHOP]
    settings.FAST_PATH = False


def paid(**values: Any) -> Order:
    fields = {"user_id": uuid.uuid4(), "email": "ann@example.com", "total_amount": 1000, "items": ITEMS}
    return pay_order(order_id=place_order(**fields | values).id)


def emails(order: Order) -> list[str]:
    rows = EmailNotification.objects.filter(order_id=order.id, shop_copy_of=None, resend_of=None)
    return list(rows.order_by("id").values_list("event_type", flat=True))


class TestAtTheSameMoment:
    @pytest.mark.parametrize(
        "other",
        [cancel_order, lambda order_id: refund_order(order_id=order_id, amount=100), complete_order],
        ids=["cancellation", "refund", "completion"],
    )
    def test_a_parcel_and_another_change_each_count_in_some_order(self, other: Callable[..., Any]):
        for _ in range(5):
            order = paid()

            def do(number: int, order: Order = order) -> str:
                try:
                    (ship_order, other)[number](order_id=order.id)
                except ChangeRefused:
                    return "refused"
                return "done"

            results = together(2, do)
            order.refresh_from_db()
            events = DomainEvent.objects.filter(aggregate_id=order.id).order_by("position")
            assert [event.sequence for event in events] == list(range(1, order.version + 1))
            assert order.version == 2 + results.count("done")
            assert results[1] == "done"
            assert Shipment.objects.filter(order_id=order.id).count() == (results[0] == "done")
            assert emails(order).count("order.shipped") == (results[0] == "done")
            assert results[0] == "done" or order.status == "cancelled"

    def test_a_warehouses_parcel_and_a_cancellation_are_both_facts(self):
        for _ in range(5):
            order = paid()

            def do(number: int, order: Order = order) -> object:
                if number:
                    return cancel_order(order_id=order.id)
                return give_about(CREATED, order, reference="P-1")

            together(2, do)
            order.refresh_from_db()
            assert (order.status, order.fulfilment, order.version) == ("cancelled", "shipped", 4)
            last = DomainEvent.objects.filter(aggregate_id=order.id).latest("position").event_type
            assert bool(order.warnings) == (last == "order.shipment.created.v1")

    @pytest.mark.parametrize("is_own", [True, False], ids=["own", "another system's"])
    def test_an_erasure_and_a_late_event_leave_nothing_of_the_person(self, is_own: bool):
        secret = {"trackingNumber": "SECRET-42", "trackingUrl": "https://x.example/SECRET-42"}
        for number in range(5):
            id, email = new_id(), f"ann{number}@example.com"
            order = paid(email=email) if is_own else None
            if order is None:
                tell("paid", id, 2, email=email)

            def do(which: int, order: Order | None = order, id: str = id, email: str = email) -> object:
                if which:
                    return erase_person(email=email, report=Steps(), force=True)
                if order is not None:
                    return give_about(CREATED, order, reference="P-1", **secret)
                return tell("shipped", id, 3, email=email, shipment={"reference": "P-1", **secret})

            together(2, do)
            assert Shipment.objects.count() == number + 1
            for model in (Shipment, DomainEvent, EmailNotification, Order):
                assert "SECRET" not in str(list(model.objects.values())), model
                assert email not in str(list(model.objects.values())), model


class TestAfterAnErasure:
    def test_a_late_event_about_a_parcel_leads_to_nobody(self):
        order = paid()
        ship_order(order_id=order.id, reference="P-1", lines=[{"item": 0, "quantity": 1}], **TRACKING)
        erase_person(email="ann@example.com", report=Steps(), force=True)
        url = {"trackingNumber": "SECRET-42", "trackingUrl": "https://x.example/SECRET-42"}
        for reference in ("P-1", "P-2"):
            assert give_about(CREATED, order, reference=reference, **url) == "done"
        give_about("fulfilment.shipment.delivered.v1", order, reference="P-1")
        assert Shipment.objects.filter(order_id=order.id).count() == 2
        for model in (Shipment, DomainEvent, EmailNotification):
            assert "SECRET" not in str(list(model.objects.values())), model
        last = EmailNotification.objects.latest("id")
        assert (last.event_type, last.status, last.body) == ("order.shipped", "suppressed", "")

    def test_another_systems_late_parcel_does_neither(self):
        id = new_id()
        tell("paid", id, 2)
        erase_person(email="ann@example.com", report=Steps(), force=True)
        tell("shipped", id, 3, shipment={"reference": "P-1", "trackingNumber": "SECRET-42"})
        for model in (Shipment, EmailNotification, Order):
            assert "SECRET" not in str(list(model.objects.values())), model


class TestEmails:
    def test_rendering_again_shows_the_parcel_of_the_email_and_no_later_one(self):
        order = paid()
        first = ship_order(order_id=order.id, lines=[{"item": 0, "quantity": 1}], tracking_number="TRACK-41")
        email = EmailNotification.objects.get(event_type="order.shipped")
        EmailNotification.objects.filter(id=email.id).update(status="dead_lettered", ended_by="provider")
        correct_shipment(order_id=order.id, shipment_id=first.id, tracking_number="TRACK-42")
        ship_order(order_id=order.id, tracking_number="TRACK-99")
        ((copy,), _) = rendered_again(email)
        assert [text for text in ("TRACK-41", "TRACK-42", "TRACK-99") if text in copy.body_text] == [
            "TRACK-42"
        ]

    def test_the_shops_copy_names_the_parcel_too(self):
        save_profile(SHOP, copy_to="shop@example.com")
        tell("shipped", new_id(), 2, shipment={"reference": "P-1", "trackingNumber": "TRACK-42"})
        sent = EmailNotification.objects.filter(event_type="order.shipped").order_by("id")
        assert [row.recipient_email for row in sent] == ["ann@example.com", "shop@example.com"]
        assert all("TRACK-42" in row.body_text for row in sent)

    def test_a_parcel_of_an_imported_order_is_mailed_and_those_of_the_past_are_not(self):
        id = new_id()
        for sequence, reference in ((3, "P-1"), (4, "P-2")):
            tell("shipped", id, sequence, notify=False, shipment={"reference": reference})
        tell("shipped", id, 5, shipment={"reference": "P-1", "trackingNumber": "42"})
        assert not EmailNotification.objects.exists()
        tell("shipped", id, 6, shipment={"reference": "P-3"})
        assert EmailNotification.objects.get().order_version == 6


def test_a_return_and_a_refund_of_its_items_leave_the_rest_to_ship():
    order = paid()
    shipment = ship_order(order_id=order.id, lines=[{"item": 0, "quantity": 1}])
    return_shipment(order_id=order.id, shipment_id=shipment.id)
    refund_order(order_id=order.id, amount=300)
    rest = ship_order(order_id=order.id)
    assert rest.lines == [{"item": 0, "quantity": 2}, {"item": 1, "quantity": 1}]
    order.refresh_from_db()
    assert (order.status, order.fulfilment) == ("part_refunded", "shipped")
    assert emails(order) == ["order.paid", "order.shipped", "order.part_refunded", "order.shipped"]
