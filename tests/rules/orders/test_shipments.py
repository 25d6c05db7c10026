"""A change of a parcel: its own row, the order's fulfilment and version, and one event."""

from __future__ import annotations

import datetime as dt
import uuid

import pytest
from django.db import connection, transaction

from orders import shipments
from orders.models import Shipment
from orders.shipments import MoreThanOrdered, ShipmentNotFound, TooManyShipments
from orders.transitions import ExternallyOwned
from tests.kit.api import Api, make_token
from tests.kit.months import Steps
from tests.kit.orders import (
    cancel_order,
    complete_order,
    confirm_order,
    make_order,
    pay_order,
    place_order,
    refund_order,
)
from tests.kit.profiles import save_profile
from tests.kit.races import together
from tests.kit.words import (
    ERASED,
    ERASED_ADDRESS,
    DomainEvent,
    EmailNotification,
    InvalidTransition,
    Order,
    erase_person,
    export_person,
)

pytestmark = pytest.mark.django_db(transaction=True)
ITEMS = [
    {"sku": "MUG", "name": "Mug", "quantity": 2, "unit_amount": 300},
    {"sku": "TEA", "name": "Tea", "quantity": 1, "unit_amount": 400},
]


def paid(**fields) -> Order:
    values = {"user_id": uuid.uuid4(), "email": "a@example.com", "total_amount": 1000, "items": ITEMS}
    return pay_order(order_id=place_order(**values | fields).id)


def done(service, order: Order, **values) -> Shipment:
    """Change a shipment, save, and read the order again."""
    with transaction.atomic():
        change, shipment = service(order_id=order.id, **values)
        change.save()
    order.refresh_from_db()
    assert isinstance(shipment, Shipment)
    return shipment


def ship(order: Order, *lines: tuple[int, int], **values) -> Shipment:
    wanted = [{"item": item, "quantity": quantity} for item, quantity in lines]
    return done(shipments.ship, order, lines=wanted or None, **values)


def events(order: Order) -> list[tuple[str, int, str]]:
    rows = DomainEvent.objects.filter(aggregate_id=order.id, event_type__startswith="order.shipment")
    return [
        (event.event_type.split(".")[2], event.sequence, event.payload["fulfilment"])
        for event in rows.order_by("position")
    ]


def test_two_parcels_of_an_order_each_raise_its_version_and_say_what_has_left():
    order = paid()
    first = ship(order, (0, 1), (1, 1), carrier="DHL", tracking_number="1", reference="P-1")
    assert (order.fulfilment, order.version, order.status) == ("part_shipped", 3, "paid")
    second = ship(order)  # all that is left
    assert second.lines == [{"item": 0, "quantity": 1}]
    assert (order.fulfilment, order.version) == ("shipped", 4)
    done(shipments.deliver, order, shipment_id=first.id)
    assert order.fulfilment == "shipped"
    done(shipments.deliver, order, shipment_id=second.id)
    assert order.fulfilment == "delivered"
    assert events(order) == [
        ("created", 3, "part_shipped"),
        ("created", 4, "shipped"),
        ("delivered", 5, "shipped"),
        ("delivered", 6, "delivered"),
    ]
    payload = DomainEvent.objects.get(aggregate_id=order.id, sequence=3).payload
    assert payload["shipmentId"] == str(first.id)
    assert payload["lines"] == [{"item": 0, "quantity": 1}, {"item": 1, "quantity": 1}]
    assert (payload["reference"], payload["carrier"], payload["trackingNumber"]) == ("P-1", "DHL", "1")


def test_a_returned_parcel_frees_its_quantities():
    order = paid()
    parcel = ship(order)
    done(shipments.take_return, order, shipment_id=parcel.id)
    assert order.fulfilment == "none"
    ship(order, (0, 2))
    assert order.fulfilment == "part_shipped"
    assert [name for name, _, _ in events(order)] == ["created", "returned", "created"]


def test_more_than_is_left_is_refused_with_what_is_left_and_changes_nothing():
    order = paid()
    ship(order, (0, 1))
    for lines in ([(0, 2)], [(0, 1), (0, 1)], [(1, 2)], [(2, 1)]):
        with pytest.raises(MoreThanOrdered) as refused:
            ship(order, *lines)
        assert refused.value.left == [{"item": 0, "quantity": 1}, {"item": 1, "quantity": 1}]
    ship(order)
    with pytest.raises(MoreThanOrdered):
        ship(order)
    assert Shipment.objects.count() == 2


def test_a_fact_that_exceeds_the_order_is_stored_and_marked():
    order = paid()
    ship(order, (0, 5), is_fact=True)
    ship(order, (7, 1), is_fact=True)
    assert Shipment.objects.count() == 2
    assert [line["text"] for line in order.warnings] == [
        "shipment: More left in parcels than was ordered.",
        "shipment: A line has an item that the order does not have.",
    ]


def test_a_parcel_is_told_once_by_its_reference():
    order = paid()
    first = ship(order, (0, 1), reference="P-1")
    assert ship(order, (0, 1), reference="P-1").id == first.id
    assert (order.version, Shipment.objects.count()) == (3, 1)
    ship(order, (0, 1))  # a parcel without a name is another one
    assert Shipment.objects.count() == 2


def test_a_repeat_of_an_end_changes_nothing():
    order = paid()
    parcel = ship(order)
    for _ in range(2):
        done(shipments.deliver, order, shipment_id=parcel.id)
        done(shipments.take_return, order, shipment_id=parcel.id)
    assert order.version == 5


def test_a_delivery_that_is_told_before_the_parcel_is_remembered():
    order = paid()
    at = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
    done(shipments.note_end, order, reference="P-1", column="delivered_at", at=at)
    assert (order.version, order.fulfilment, events(order)) == (2, "none", [])
    parcel = ship(order, reference="P-1")
    assert parcel.delivered_at == at
    assert (order.version, order.fulfilment, Shipment.objects.count()) == (4, "delivered", 1)
    assert events(order) == [("created", 3, "shipped"), ("delivered", 4, "delivered")]
    done(shipments.note_end, order, reference="P-1", column="returned_at")
    assert (order.version, order.fulfilment) == (5, "none")


def test_a_corrected_number_is_an_event_and_an_equal_one_is_none():
    order = paid()
    parcel = ship(order, tracking_number="1")
    done(shipments.correct, order, shipment_id=parcel.id, tracking_number="2")
    done(shipments.correct, order, shipment_id=parcel.id, tracking_number="2")
    assert [name for name, _, _ in events(order)] == ["created", "updated"]
    parcel.refresh_from_db()
    assert parcel.tracking_number == "2"


def test_the_number_of_a_parcel_that_nobody_said_left_is_kept_without_an_event_or_an_email(settings):
    settings.NOTIFY_ON = ["order.shipped"]
    order = paid()
    parcel = done(shipments.note_end, order, reference="P-1", column="delivered_at")
    done(shipments.correct, order, shipment_id=parcel.id, tracking_number="2", notify=True)
    assert (order.version, events(order), EmailNotification.objects.count()) == (2, [], 0)
    assert ship(order, reference="P-1").tracking_number == "2"


@pytest.mark.parametrize("end", ["pending", "cancelled", "refunded"])
def test_no_parcel_leaves_an_order_that_is_not_paid_or_has_ended(end):
    order = place_order(user_id=uuid.uuid4(), email="a@example.com", total_amount=1000, items=ITEMS)
    if end == "cancelled":
        cancel_order(order_id=order.id)
    if end == "refunded":
        pay_order(order_id=order.id)
        refund_order(order_id=order.id)
    with pytest.raises(InvalidTransition, match=f"is {end}"):
        ship(order)
    parcel = ship(order, is_fact=True)
    assert parcel.shipped_at and bool(parcel.untold_since) == (end == "pending")
    warning = f"shipment: A parcel left though the order is {end}."
    assert [line["text"] for line in order.warnings] == ([] if end == "pending" else [warning])


def test_parcels_leave_confirmed_part_refunded_and_completed_orders():
    for bring in (
        lambda id: confirm_order(order_id=id),
        lambda id: refund_order(order_id=id, amount=300),
        lambda id: complete_order(order_id=id),
    ):
        order = paid()
        bring(order.id)
        ship(order, (0, 1))
        assert Shipment.objects.filter(order_id=order.id).count() == 1


def test_a_completed_order_has_sent_what_was_left_and_one_without_parcels_sends_as_before():
    order = paid()
    ship(order, (0, 1))
    order = complete_order(order_id=order.id)
    assert (order.status, order.fulfilment) == ("completed", "shipped")
    other = complete_order(order_id=paid().id)
    assert (other.status, other.fulfilment) == ("completed", "none")


def test_an_order_of_another_system_takes_none():
    order = make_order(source="shop-a", status="paid", items=ITEMS)
    for service, values in (
        (shipments.ship, {}),
        (shipments.note_end, {"reference": "P-1", "column": "delivered_at"}),
        (shipments.deliver, {"shipment_id": uuid.uuid4()}),
    ):
        with pytest.raises(ExternallyOwned):
            done(service, order, **values)


def test_an_order_without_items_is_shipped_by_its_first_parcel():
    order = paid(items=[])
    assert ship(order).lines == []
    assert order.fulfilment == "shipped"
    ship(order)
    assert Shipment.objects.count() == 2


def test_an_erased_persons_parcel_keeps_no_tracking():
    order = paid()
    Order.objects.filter(id=order.id).update(email=ERASED_ADDRESS)
    parcel = ship(order, tracking_number="1", tracking_url="https://parcels.example.com/1")
    done(shipments.correct, order, shipment_id=parcel.id, tracking_number="2")
    parcel.refresh_from_db()
    assert (parcel.tracking_number, parcel.tracking_url) == ("", "")
    assert [name for name, _, _ in events(order)] == ["created"]


def test_an_order_has_at_most_a_hundred_parcels(monkeypatch):
    monkeypatch.setattr(shipments, "MOST_SHIPMENTS", 1)
    order = paid()
    ship(order, (0, 1))
    with pytest.raises(TooManyShipments):
        ship(order, (0, 1))
    ship(order, (0, 1), is_fact=True)


def test_another_orders_parcel_is_not_there():
    parcel = ship(paid())
    with pytest.raises(ShipmentNotFound):
        done(shipments.deliver, paid(), shipment_id=parcel.id)


def test_parcels_at_the_same_moment_never_exceed_the_order():
    order = paid()

    def try_to(_):
        try:
            return bool(ship(Order.objects.get(id=order.id), (0, 1)))
        except MoreThanOrdered:
            return False

    assert sorted(together(4, try_to)) == [False, False, True, True]
    order.refresh_from_db()
    assert (order.fulfilment, order.version) == ("part_shipped", 4)


@pytest.mark.django_db(transaction=True, databases=["default", "direct"])
class TestAPerson:
    TRACKING = {
        "carrier": "DHL",
        "tracking_number": "SECRET-42",
        "tracking_url": "https://x.example/SECRET-42",
    }

    def test_an_export_has_the_parcels(self):
        order, other = paid(), paid(email="b@example.com")
        shipment = ship(order, (0, 1), **self.TRACKING)
        ship(other)
        (row,) = export_person(email=order.email, report=Steps())["shipments"]
        assert (row["id"], row["tracking_number"], row["lines"]) == (shipment.id, "SECRET-42", shipment.lines)

    def test_an_erasure_leaves_nothing_that_leads_to_the_person(self):
        api = Api(make_token())
        path = api.place(email="a@example.com", items=ITEMS)
        api.post(f"{path}/pay")
        lines = {"lines": [{"item": 0, "quantity": 2}]}
        parcel = api.post(f"{path}/shipments", lines | self.TRACKING, key="k").json()
        place = f"{path}/shipments/{parcel['id']}"
        api.request("PATCH", place, {"tracking_number": "SECRET-43"}, **{"Idempotency-Key": "l"})
        api.post(f"{place}/delivered", key="m")
        kept = ship(paid(email="b@example.com"), **self.TRACKING)
        ship(paid())  # it has no tracking
        counts = erase_person(email="a@example.com", report=Steps(), force=True).counts
        assert (counts["shipments"], counts["orders"]) == (1, 2)
        row = Shipment.objects.get(id=parcel["id"])
        assert (row.carrier, row.tracking_number, row.tracking_url) == ("", "", "")
        assert row.lines == lines["lines"] and row.delivered_at
        kept.refresh_from_db()
        assert kept.tracking_number == "SECRET-42"
        with connection.cursor() as cursor:
            for table in ("outbox_events", "idempotency_keys", "email_notifications", "shipments", "orders"):
                cursor.execute(
                    f"SELECT count(*) FROM {table} AS t WHERE t::text LIKE %s AND t::text LIKE %s",
                    ["%SECRET%", f"%{path.rpartition('/')[2]}%"],
                )
                assert cursor.fetchone() == (0,), table
        stored = api.post(f"{path}/shipments", lines | self.TRACKING, key="k").json()
        assert stored == {"id": parcel["id"], "order_id": parcel["order_id"]}

    def test_a_correction_and_a_parcel_after_the_erasure_store_no_tracking(self):
        order = paid()
        shipment = ship(order, (0, 1), reference="P-1")
        erase_person(email="a@example.com", report=Steps(), force=True)
        done(shipments.correct, order, shipment_id=shipment.id, **self.TRACKING)
        ship(order, (0, 1), reference="P-1", **self.TRACKING)
        ship(order, (1, 1), **self.TRACKING)
        assert set(Shipment.objects.values_list("tracking_number", "tracking_url")) == {("", "")}
        assert not any("SECRET" in str(event.payload) for event in DomainEvent.objects.all())


def emails(order: Order, *events: str) -> list[EmailNotification]:
    """Return the order's e-mails about these events, oldest first."""
    rows = EmailNotification.objects.filter(order_id=order.id, event_type__in=events or ["order.shipped"])
    return list(rows.order_by("id"))


class TestEmails:
    def test_each_parcel_is_told_once_with_what_is_in_it_and_what_follows(self):
        order = paid(reference="A-1")
        ship(order, (0, 1), reference="P-1", carrier="DHL", tracking_number="42")
        ship(order, (0, 1), reference="P-1")
        ship(order)
        first, second = emails(order)
        assert [(email.order_version, email.subject) for email in (first, second)] == [
            (3, "Part of your order A-1 is on its way"),
            (4, "Your parcel for order A-1 is on its way"),
        ]
        assert "In this parcel:\n- 1 × Mug\n" in first.body_text and "Carrier: DHL" in first.body_text
        assert "Not dispatched yet:\n- 1 × Mug\n- 1 × Tea\n" in first.body_text
        assert "Everything you ordered has now been dispatched." in second.body_text

    def test_what_came_back_is_not_promised_again(self):
        order = paid()
        done(shipments.take_return, order, shipment_id=ship(order, (0, 1)).id)
        ship(order, (1, 1))
        email = emails(order)[-1]
        assert "Not dispatched yet:\n- 1 × Mug\n\n" in email.body_text
        ship(order, (0, 1))
        last = emails(order)[-1].body_text
        assert "Not dispatched yet" not in last and "Everything" not in last

    def test_nothing_is_promised_of_a_completed_order_or_if_a_parcel_is_not_said(self):
        order = paid()
        complete_order(order_id=order.id)
        ship(order, (0, 1))
        other = paid()
        done(shipments.ship, other, lines=[], is_fact=True)
        ship(other, (0, 1))
        for email in (*emails(order), *emails(other)):
            assert "Not dispatched yet" not in email.body_text and "Everything" not in email.body_text
        assert "In this parcel" not in emails(other)[0].body_text

    def test_the_date_is_that_of_the_parcel(self):
        order = paid()
        at = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
        ship(order, shipped_at=at)
        (email,) = emails(order)
        assert email.body_text.startswith("January\N{NO-BREAK SPACE}2, 2026\n")

    def test_a_corrected_number_is_told_only_if_the_shop_wishes(self):
        order = paid()
        parcel = ship(order, tracking_number="1")
        done(shipments.correct, order, shipment_id=parcel.id, tracking_number="2")
        assert len(emails(order)) == 1
        done(shipments.correct, order, shipment_id=parcel.id, tracking_number="3", notify=True)
        _, email = emails(order)
        assert email.subject.startswith("Corrected tracking details for your order")
        assert "Tracking number: 3\n" in email.body_text and email.order_version == order.version == 5

    def test_a_delivery_is_told_only_if_notify_on_names_it(self, settings):
        order = paid()
        done(shipments.deliver, order, shipment_id=ship(order, (0, 1)).id)
        assert emails(order, "order.delivered") == []
        settings.NOTIFY_ON = [*settings.NOTIFY_ON, "order.delivered"]
        parcel = ship(order)
        for _ in range(2):
            done(shipments.deliver, order, shipment_id=parcel.id)
        (email,) = emails(order, "order.delivered")
        assert "was delivered on" in email.body_text and "- 1 × Mug\n- 1 × Tea\n" in email.body_text

    def test_a_parcel_whose_delivery_was_told_before_is_no_news(self):
        order = paid()
        done(shipments.note_end, order, reference="P-1", column="delivered_at")
        ship(order, reference="P-1")
        assert emails(order) == []

    def test_the_shop_gets_its_copy(self):
        save_profile("", copy_to="office@example.com")
        order = paid()
        ship(order, tracking_number="TRACK-42")
        mine, copy = emails(order)
        assert (copy.recipient_email, copy.shop_copy_of) == ("office@example.com", mine.id)
        assert "TRACK-42" in copy.body_text

    def test_an_erased_persons_email_says_nothing(self):
        order = paid()
        Order.objects.filter(id=order.id).update(email=ERASED_ADDRESS)
        ship(order, tracking_number="42")
        (email,) = emails(order)
        assert (email.status, email.subject, email.body, email.body_text) == ("suppressed", ERASED, "", "")

    @pytest.mark.parametrize(
        ("quantities", "subject"),
        [
            ([], "Your order A-1 is on its way"),
            ([1], "The rest of your order A-1 is on its way"),
            ([1, 1], "Your order A-1 is complete"),
        ],
    )
    def test_a_completion_says_on_its_way_only_of_what_had_not_left(self, quantities, subject):
        order = paid(reference="A-1", items=ITEMS[:1])
        for quantity in quantities:
            ship(order, (0, quantity))
        complete_order(order_id=order.id, tracking_url="https://parcels.example.com/1")
        (email,) = emails(order, "order.completed")
        assert email.subject == subject
        assert len(emails(order)) == len(quantities)
