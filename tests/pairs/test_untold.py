"""Parcels that came before their order's payment, and the features that change orders, too."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models.functions import Now

from orders import services, shipments, untold
from orders.models import Shipment
from orders.transitions import ChangeRefused
from runtime.jobs.work import do_work
from runtime.models import Pause
from tests.kit.api import Api, make_token
from tests.kit.arrivals import CANCELLED, ITEMS, LINES, PENDING, TOPICS, event_of
from tests.kit.events import give, give_about
from tests.kit.mails import rendered_again
from tests.kit.months import Steps
from tests.kit.orders import (
    cancel_order,
    complete_order,
    confirm_order,
    correct_shipment,
    deliver_shipment,
    make_order,
    pay_order,
    place_order,
    ship_order,
)
from tests.kit.races import broken, together, wait_until_somebody_waits
from tests.kit.waiting import PATIENCE
from tests.kit.words import (
    EMAILS,
    DomainEvent,
    EmailNotification,
    Order,
    erase_person,
    export_person,
    read_timeline,
)

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])
CREATED, DELIVERED, RETURNED = (TOPICS[step] for step in ("created", "delivered", "returned"))
SECRET = {"trackingNumber": "SECRET-42", "trackingUrl": "https://x.example/SECRET-42"}


@pytest.fixture(autouse=True)
def _settings(settings: Any) -> None:
    settings.FAST_PATH, settings.NOTIFY_ON = False, EMAILS


def place(**values: Any) -> Order:
    fields = {"user_id": uuid.uuid4(), "email": "ann@example.com", "total_amount": 1000, "items": ITEMS}
    return place_order(**fields | values)


def waiting(*references: str, **values: Any) -> Order:
    """Return a pending order whose parcels came."""
    order = place(**values)
    for reference in references or ("P-1",):
        assert give_about(CREATED, order, reference=reference, lines=LINES, **SECRET) == "done"
    return order


def events(order: Order) -> list[str]:
    rows = DomainEvent.objects.filter(aggregate_id=order.id).order_by("position")
    assert [row.sequence for row in rows] == list(range(1, len(rows) + 1))
    order.refresh_from_db()
    assert order.version == len(rows)
    return [row.event_type.partition(".")[2].removesuffix(".v1") for row in rows]


def emails(order: Order) -> list[str]:
    rows = EmailNotification.objects.filter(order_id=order.id, shop_copy_of=None, resend_of=None)
    return list(rows.order_by("id").values_list("event_type", flat=True))


def make_older(order: Order, minutes: int) -> None:
    """Have the parcels of an order come so many minutes before."""
    for model, key in ((Shipment, "order_id"), (Order, "id")):
        waiting = model.objects.filter(**{key: order.id}).exclude(untold_since=None)
        waiting.update(untold_since=Now() - dt.timedelta(minutes=minutes))


class TestTenMinutes:
    def test_it_is_told_by_the_background_step_with_todays_warning_and_the_payment_comes_after_it(self):
        order, young = waiting(), waiting()
        make_older(order, 11)
        make_older(young, 9)
        assert untold.is_due()
        do_work()
        assert not untold.is_due()
        assert events(order) == ["order.placed", "shipment.created"]
        assert (order.status, order.fulfilment, order.untold_since) == ("pending", "part_shipped", None)
        assert [line["text"] for line in order.warnings] == [PENDING]
        assert events(young) == ["order.placed"] and young.warnings == []
        pay_order(order_id=order.id)
        assert events(order) == ["order.placed", "shipment.created", "order.paid"]
        assert emails(order) == ["order.placed", "order.shipped", "order.paid"]

    def test_its_end_is_told_with_it(self):
        order = waiting()
        give_about(DELIVERED, order, reference="P-1")
        make_older(order, 11)
        do_work()
        assert events(order)[1:] == ["shipment.created", "shipment.delivered"]
        assert emails(order)[1:] == ["order.delivered"]

    def test_a_parcel_that_came_later_waits_its_own_ten_minutes(self):
        order = waiting("P-1")
        make_older(order, 11)
        give_about(CREATED, order, reference="P-2")
        do_work()
        order.refresh_from_db()
        (second,) = Shipment.objects.exclude(untold_since=None)
        assert (second.reference, order.untold_since) == ("P-2", second.untold_since)
        pay_order(order_id=order.id)
        assert events(order)[1:] == ["shipment.created", "order.paid", "shipment.created"]

    def test_an_order_that_the_release_before_paid_is_told_without_a_warning(self):
        order = waiting()
        Order.objects.filter(id=order.id).update(status="paid", paid_at=Now())
        make_older(order, 11)
        do_work()
        assert events(order) == ["order.placed", "shipment.created"] and order.warnings == []

    def test_no_parcel_is_told_while_the_consumers_are_paused_because_the_payment_may_wait(self):
        order = waiting()
        make_older(order, 11)
        pause = Pause.objects.create(part=Pause.Part.CONSUMERS)
        assert not untold.is_due()
        do_work()
        assert events(order) == ["order.placed"]
        pause.delete()
        do_work()
        assert events(order) == ["order.placed", "shipment.created"]

    def test_two_workers_and_a_payment_at_once_tell_it_once(self):
        for _ in range(5):
            order = waiting()
            make_older(order, 11)
            together(3, lambda number, id=order.id: pay_order(order_id=id) if number == 0 else do_work())
            told = events(order)
            assert sorted(told[1:]) == ["order.paid", "shipment.created"]
            assert bool(order.warnings) == (told[1] == "shipment.created")

    def test_it_is_found_by_the_partial_index_among_many(self):
        order = make_order()
        rows = (Shipment(order_id=order.id, shipped_at=dt.datetime.now(dt.UTC)) for _ in range(3000))
        Shipment.objects.bulk_create(rows)
        waiting()
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE shipments")
        assert "shipments_untold" in untold._due().explain()


class TestAtTheSameMoment:
    def test_payments_parcels_and_ends_are_told_once_and_after_the_payment(self):
        for _ in range(8):
            order = place()

            def do(number: int, order: Order = order) -> object:
                if number < 2:
                    return give(event_of("paid", order.id))
                topic, reference = [(CREATED, "P-1"), (CREATED, "P-2"), (DELIVERED, "P-1")][number - 2]
                return give_about(topic, order, reference=reference, lines=LINES)

            results = together(5, do)
            assert sorted(results[:2]) == ["dead", "done"] and set(results[2:]) == {"done"}
            told = events(order)
            assert told[:2] == ["order.placed", "order.paid"]
            assert sorted(told[2:]) == ["shipment.created"] * 2 + ["shipment.delivered"]
            assert not Shipment.objects.filter(order_id=order.id).exclude(untold_since=None).exists()
            assert (order.untold_since, order.fulfilment, order.warnings) == (None, "shipped", [])

    def test_a_payment_that_waited_for_the_parcels_transaction_tells_it(self):
        order = place()
        stored, go_on = threading.Event(), threading.Event()

        def do(number: int) -> None:
            if number:
                assert stored.wait(PATIENCE)
                pay_order(order_id=order.id)
                return
            with transaction.atomic():
                give_shipment(order)
                stored.set()
                assert go_on.wait(PATIENCE)

        waiter = threading.Thread(
            target=lambda: (wait_until_somebody_waits(), go_on.set(), connection.close())
        )
        waiter.start()
        together(2, do)
        waiter.join(PATIENCE)
        assert events(order) == ["order.placed", "order.paid", "shipment.created"]

    @pytest.mark.parametrize("change", [pay_order, cancel_order], ids=["payment", "cancellation"])
    @pytest.mark.parametrize("table", ["orders", "shipments", "outbox_events", "email_notifications"])
    def test_a_change_that_fails_at_any_table_tells_nothing_and_its_repeat_tells_once(self, table, change):
        order = waiting()
        give_about(DELIVERED, order, reference="P-1")
        with broken(table), pytest.raises(DatabaseError):
            change(order_id=order.id)
        assert events(order) == emails(order) == ["order.placed"]
        assert order.untold_since and Shipment.objects.get().untold_since
        change(order_id=order.id)
        assert events(order)[2:] == ["shipment.created", "shipment.delivered"]
        assert order.untold_since is None and Shipment.objects.get().untold_since is None


def give_shipment(order: Order) -> None:
    change, _ = shipments.ship(order_id=order.id, is_fact=True, reference="P-1", lines=LINES)
    change.save()


class TestOtherChanges:
    def test_a_reserved_stock_is_confirmed_before_the_parcel_is_told(self):
        order = waiting()
        confirm_order(order_id=order.id)
        assert events(order) == ["order.placed"]
        pay_order(order_id=order.id)
        assert events(order) == ["order.placed", "order.paid", "order.confirmed", "shipment.created"]

    def test_a_cancellation_tells_it_with_the_warning(self):
        order = waiting("P-1", "P-2")
        cancel_order(order_id=order.id)
        assert events(order)[1:] == ["order.cancelled", "shipment.created", "shipment.created"]
        assert [line["text"] for line in order.warnings] == [CANCELLED] * 2

    def test_two_parcels_are_told_as_if_they_had_come_after_the_payment(self):
        late, early = waiting("P-1", "P-2"), place()
        for order in (early, late):
            pay_order(order_id=order.id)
        for reference in ("P-1", "P-2"):
            give_about(CREATED, early, reference=reference, lines=LINES, **SECRET)
        bodies = [
            [
                row.body_text.replace(str(order.id)[-8:].upper(), "")
                for row in EmailNotification.objects.filter(
                    order_id=order.id, event_type="order.shipped"
                ).order_by("id")
            ]
            for order in (early, late)
        ]
        assert bodies[0] == bodies[1] and "Not dispatched yet" in bodies[1][0]
        states = [
            list(
                DomainEvent.objects.filter(aggregate_id=order.id)
                .order_by("position")
                .values_list("payload__fulfilment", flat=True)
            )
            for order in (early, late)
        ]
        assert states[0] == states[1] == ["none", "none", "part_shipped", "shipped"]

    def test_the_completion_after_it_says_what_had_left(self):
        order = waiting()
        pay_order(order_id=order.id)
        complete_order(order_id=order.id, tracking_url="https://parcels.example.com/1")
        assert events(order)[-1] == "order.completed" and order.fulfilment == "shipped"
        email = EmailNotification.objects.get(event_type="order.completed")
        assert email.subject.startswith("The rest of your order")
        EmailNotification.objects.filter(id=email.id).update(status="dead_lettered", ended_by="provider")
        ((copy,), _) = rendered_again(email)
        assert copy.subject == email.subject

    def test_its_email_is_rendered_again_with_its_tracking(self):
        order = waiting()
        pay_order(order_id=order.id)
        email = EmailNotification.objects.get(event_type="order.shipped")
        EmailNotification.objects.filter(id=email.id).update(status="dead_lettered", ended_by="provider")
        ((copy,), _) = rendered_again(email)
        assert "SECRET-42" in copy.body_text and copy.subject == email.subject

    def test_the_api_finds_corrects_and_ends_it_without_an_event_before_the_payment(self):
        order = waiting()
        parcel = Shipment.objects.get()
        assert ship_order(order_id=order.id, reference="P-1", carrier="UPS").id == parcel.id
        correct_shipment(order_id=order.id, shipment_id=parcel.id, tracking_number="43", notify=True)
        deliver_shipment(order_id=order.id, shipment_id=parcel.id)
        with pytest.raises(ChangeRefused, match="pending"):
            ship_order(order_id=order.id, reference="P-2")
        assert events(order) == emails(order) == ["order.placed"]
        pay_order(order_id=order.id)
        assert events(order)[2:] == ["shipment.created", "shipment.delivered"]
        details = DomainEvent.objects.get(event_type="order.shipment.created.v1").payload
        assert (details["carrier"], details["trackingNumber"]) == ("UPS", "43")

    def test_a_payment_tells_a_hundred_and_the_step_the_others(self, monkeypatch):
        monkeypatch.setattr(services, "MOST_TOLD", 2)
        order = waiting("P-1", "P-2", "P-3")
        pay_order(order_id=order.id)
        assert events(order)[2:] == ["shipment.created"] * 2
        make_older(order, 11)
        do_work()
        assert events(order)[2:] == ["shipment.created"] * 3
        assert PENDING not in [line["text"] for line in order.warnings]


class TestAPerson:
    def test_an_erasure_meanwhile_leaves_nothing_in_what_is_told_later(self):
        order = waiting()
        give_about(DELIVERED, order, reference="P-1")
        erase_person(email="ann@example.com", report=Steps(), force=True)
        assert Shipment.objects.get().untold_since
        pay_order(order_id=order.id)
        assert events(order)[1:] == ["order.paid", "shipment.created", "shipment.delivered"]
        for model in (Shipment, DomainEvent, EmailNotification, Order):
            assert "SECRET" not in str(list(model.objects.values())), model
            assert "ann@" not in str(list(model.objects.values())), model
        last = EmailNotification.objects.latest("id")
        assert (last.event_type, last.status, last.body) == ("order.delivered", "suppressed", "")

    def test_an_erasure_and_a_payment_at_once_leave_nothing(self):
        for number in range(5):
            email = f"ann{number}@example.com"
            order = waiting(email=email)

            def do(which: int, order: Order = order, email: str = email) -> object:
                if which:
                    return erase_person(email=email, report=Steps(), force=True)
                return pay_order(order_id=order.id)

            together(2, do)
            assert events(order) == ["order.placed", "order.paid", "shipment.created"]
            for model in (Shipment, DomainEvent, EmailNotification, Order):
                text = str(list(model.objects.values()))
                assert "SECRET" not in text and email not in text, model

    def test_an_export_and_the_order_have_it(self):
        order = waiting()
        (row,) = export_person(email=order.email, report=Steps())["shipments"]
        assert row["tracking_number"] == "SECRET-42" and row["untold_since"] is not None
        answer = Api(make_token()).get(f"/api/v1/orders/{order.id}").json()
        assert (answer["fulfilment"], answer["version"]) == ("none", 1)
        assert [parcel["reference"] for parcel in answer["shipments"]] == ["P-1"]

    def test_the_timeline_shows_it_and_later_shows_it_once(self):
        order = waiting()
        (line,) = [entry.text for entry in read_timeline(order=order) if "Parcel" in entry.text]
        assert line == "Parcel P-1 left with SECRET-42: 1 × Tea (not told yet: it waits for the payment)"
        pay_order(order_id=order.id)
        order.refresh_from_db()
        (line,) = [
            entry.text
            for entry in read_timeline(order=order)
            if "Parcel" in entry.text and entry.kind == "change"
        ]
        assert line == "Parcel P-1 left with SECRET-42: 1 × Tea (version 3)"
