"""A payment that its order cannot take is refused, and the order tells that money must be returned."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db import OperationalError, transaction
from psycopg import errors

from orders.models import OrderRefund, UnexpectedPayment
from tests.kit.api import Api, make_token
from tests.kit.events import (
    INSUFFICIENT,
    PAID,
    REFUNDED,
    envelope,
    give_about,
    handle,
    order,
    received,
    refunded,
    tell,
)
from tests.kit.orders import cancel_order, pay_order, refund_order
from tests.kit.words import (
    HANDLERS,
    NAME,
    DomainEvent,
    EmailNotification,
    InboundDeadLetter,
    Order,
    ProcessedEvent,
    inbox,
    order_services,
    read_timeline,
    replay_next,
)

pytestmark = pytest.mark.django_db(transaction=True)
URL = "/api/v1/events"


def cancelled() -> Order:
    it = order()
    return cancel_order(order_id=it.id)


def paid() -> Order:
    it = order()
    return pay_order(order_id=it.id)


def payment(it: Order, **data: Any) -> dict[str, Any]:
    return envelope(PAID, {"orderId": str(it.id)} | data)


def give(event: dict[str, Any]) -> str:
    return handle(received(event["eventType"], event))


def trace(it: Order) -> tuple[bool, str | None, int | None]:
    """Return whether money must be returned, the payment's event, and its amount."""
    it.refresh_from_db()
    payment = UnexpectedPayment.objects.filter(order_id=it.id).order_by("at", "id").last()
    is_owed = it.unexpected_payment_at is not None
    return is_owed, str(payment.id) if payment else None, payment.amount if payment else None


def end(it: Order, event: dict[str, Any]) -> None:
    with transaction.atomic():
        order_services.end_unexpected_payment(order_id=it.id, event_id=uuid.UUID(event["eventId"])).save()


def told(it: Order) -> list[str]:
    it.refresh_from_db()
    return [entry.text for entry in read_timeline(order=it) if entry.what.startswith("payment_")]


class TestTrace:
    @pytest.mark.parametrize("make", [cancelled, paid])
    @pytest.mark.parametrize("data", [{}, {"amount": 1000}, {"amount": 999, "currency": "USD"}])
    def test_a_refused_payment_leaves_one_that_changes_nothing_else(self, make, data):
        it = make()
        before = (it.status, it.version, DomainEvent.objects.count(), EmailNotification.objects.count())
        event = payment(it, **data)
        assert give(event) == "dead"
        assert trace(it) == (True, event["eventId"], data.get("amount", 1000))
        dead_letter = 1  # which has an event of its own
        after = (it.status, it.version, DomainEvent.objects.count() - dead_letter)
        assert (*after, EmailNotification.objects.count()) == before
        (text,) = told(it)
        amount = f"${data.get('amount', 1000) / 100:.2f}"
        assert text == f"Payment of {amount} that the order cannot take: return it (event {event['eventId']})"

    def test_five_repeats_over_http_leave_one(self):
        it, api = cancelled(), Api(make_token())
        event = payment(it)
        assert [api.post(URL, event).status_code for _ in range(5)] == [422] * 5
        assert trace(it) == (True, event["eventId"], 1000)
        at = it.unexpected_payment_at
        assert api.post(URL, [event]).json()["results"][0]["result"] == "refused"
        assert trace(it)[0] and it.unexpected_payment_at == at
        assert not ProcessedEvent.objects.exists() and not InboundDeadLetter.objects.exists()
        shown = api.get(f"/api/v1/orders/{it.id}").json()
        assert shown["unexpected_payment_at"] == at.isoformat().replace("+00:00", "Z")
        end(it, event)
        assert "unexpected_payment_at" not in api.get(f"/api/v1/orders/{it.id}").json()
        assert api.post(URL, event).status_code == 422
        assert trace(it) == (False, event["eventId"], 1000)

    def test_a_payment_in_another_currency_has_no_amount(self):
        it = cancelled()
        event = payment(it, amount=900, currency="EUR")
        assert give(event) == "dead"
        assert trace(it) == (True, event["eventId"], None)
        assert told(it)[0].startswith("Payment in another currency that the order cannot take")
        assert give_about(REFUNDED, it, amount=900) == "dead"
        assert trace(it)[0]
        end(it, event)
        assert not trace(it)[0]

    def test_two_are_owed_until_each_is_returned_and_the_order_shows_the_oldest(self):
        it = cancelled()
        first, second = payment(it), payment(it, amount=5)
        assert [give(event) for event in (first, second)] == ["dead", "dead"]
        it.refresh_from_db()
        times = UnexpectedPayment.objects.filter(order_id=it.id).order_by("at").values_list("at", flat=True)
        assert [text.partition(" (")[0] for text in told(it)] == [
            "Payment of $10.00 that the order cannot take: return it",
            "Payment of $0.05 that the order cannot take: return it",
        ]
        assert it.unexpected_payment_at == times[0]
        end(it, first)
        it.refresh_from_db()
        assert it.unexpected_payment_at == times[1]
        end(it, second)
        assert not trace(it)[0]

    def test_a_payment_that_the_order_could_take_in_another_way_leaves_none(self, settings):
        settings.ORDER_SOURCES = ["shop-a"]
        it = order()
        assert give(payment(it, amount=1)) == "dead"  # a person may accept it as the whole
        assert not trace(it)[0]
        tell("paid", "0199aaaa-0000-7000-8000-000000000001", 1)
        theirs = Order.objects.get(source="shop-a")  # whose owner answers for it
        assert give(payment(theirs)) == "dead"
        assert not trace(theirs)[0]
        assert Api(make_token()).post(f"/api/v1/orders/{cancelled().id}/pay").status_code == 409
        assert not Order.objects.filter(unexpected_payment_at__isnull=False).exists()

    def test_without_it_the_refusal_is_not_stored_and_the_event_comes_again(self, monkeypatch):
        it = cancelled()
        event = payment(it)
        note = order_services.note_unexpected_payment

        def locked(**_: Any) -> None:
            raise OperationalError("canceling statement due to lock timeout") from errors.LockNotAvailable()

        monkeypatch.setattr(order_services, "note_unexpected_payment", locked)
        with pytest.raises(OperationalError):
            give(event)
        assert Api(make_token()).post(URL, event).status_code == 503
        assert not InboundDeadLetter.objects.exists() and not trace(it)[0]
        monkeypatch.setattr(order_services, "note_unexpected_payment", note)
        assert give(event) == "dead" and trace(it)[0]

    def test_a_replay_leaves_one_and_recognises_that_it_was_returned(self):
        event = payment(order())
        assert give(event | {"data": {"orderId": str(uuid.uuid4())}}) == "dead"  # nobody's order
        it = cancelled()
        letter = InboundDeadLetter.objects.get()
        letter.envelope = letter.envelope.replace(
            inbox.open_message(inbox._received(letter)).any_envelope.data["orderId"], str(it.id)
        )
        letter.save()

        def replay() -> None:
            InboundDeadLetter.objects.request_replay(ids=[letter.id])
            assert replay_next(consumer=NAME, handlers=HANDLERS) is not None
            letter.refresh_from_db()
            assert "Replayed: the payment was not expected" in letter.error

        replay()
        assert trace(it) == (True, event["eventId"], 1000)
        end(it, event)
        replay()
        assert trace(it) == (False, event["eventId"], 1000)


class TestReturn:
    @pytest.mark.parametrize("make", [cancelled, paid])
    @pytest.mark.parametrize("amount", [None, 1000, 1])
    def test_a_refund_event_ends_it_and_changes_nothing_else(self, make, amount):
        it = make()
        give(payment(it))
        it.refresh_from_db()
        before = (it.status, it.version, it.refunded_amount, DomainEvent.objects.count())
        data = {} if amount is None else {"amount": amount}
        mails = EmailNotification.objects.count()
        assert give_about(REFUNDED, it, refundId="re_1", **data) == "done"
        assert not trace(it)[0]
        assert (it.status, it.version, it.refunded_amount, DomainEvent.objects.count()) == before
        assert EmailNotification.objects.count() == mails
        refund = OrderRefund.objects.get()
        assert (refund.refund_id, refund.amount, refund.way) == ("re_1", amount or 1000, "event")
        assert refund.is_unexpected_payment
        assert told(it)[1:] == [
            f"Payment of ${(amount or 1000) / 100:.2f} returned that the order could not take"
        ]

    @pytest.mark.parametrize(
        ("refund", "returned"),
        [({"amount": 400}, 400), ({"amount": 500}, 900), ({"amount": 300}, 900), ({}, 900)],
    )
    def test_a_refund_returns_the_one_of_exactly_its_amount_or_else_the_oldest_that_is_large_enough(
        self, refund, returned
    ):
        it = cancelled()
        for amount in (900, 400):
            give(payment(it, amount=amount))
        give(payment(it, amount=7000, currency="EUR"))
        assert give_about(REFUNDED, it, **refund) == "done"
        rows = UnexpectedPayment.objects.filter(order_id=it.id).exclude(returned_at=None)
        assert rows.get().amount == returned
        assert trace(it)[0]

    @pytest.mark.parametrize("make", [cancelled, paid])
    def test_its_repeat_refunds_no_order(self, make):
        it = make()
        give(payment(it))
        assert [give_about(REFUNDED, it, amount=1000, refundId="re_1") for _ in range(2)] == ["done", "done"]
        refund = Api(make_token()).post(f"/api/v1/orders/{it.id}/refund", {"refund_id": "re_1"})
        assert (refund.status_code, refunded(it)) == (200, 0)

    def test_a_larger_refund_is_the_orders(self):
        unpaid, twice_paid = cancelled(), paid()
        for it in (unpaid, twice_paid):
            give(payment(it, amount=500))
        assert give_about(REFUNDED, unpaid, amount=501) == "dead"
        assert give_about(REFUNDED, twice_paid, amount=501) == "done"
        assert trace(unpaid)[0] and trace(twice_paid)[0] and refunded(twice_paid) == 501

    def test_a_refund_over_the_api_is_the_orders(self):
        unpaid, twice_paid, api = cancelled(), paid(), Api(make_token())
        for it in (unpaid, twice_paid):
            give(payment(it))
        answers = [api.post(f"/api/v1/orders/{it.id}/refund", {"amount": 10}) for it in (unpaid, twice_paid)]
        assert [answer.status_code for answer in answers] == [409, 200]
        assert trace(unpaid)[0] and trace(twice_paid)[0] and refunded(twice_paid) == 10

    def test_a_second_payment_and_a_late_cancellation_are_two_debts(self):
        it = paid()
        give(payment(it))
        assert give_about(INSUFFICIENT, it) == "done"
        assert trace(it)[0] and it.status == "cancelled"
        assert [give_about(REFUNDED, it, amount=1000) for _ in range(3)] == ["done", "done", "dead"]
        assert not trace(it)[0]
        assert (it.status, refunded(it)) == ("cancelled", 1000)

    def test_a_payment_that_overtook_its_late_cancellation_is_the_orders(self):
        it = order()
        first, second = payment(it), payment(it)
        assert [give(first), give(second), give_about(INSUFFICIENT, it)] == ["done", "dead", "done"]
        assert [give_about(REFUNDED, it, amount=400), refunded(it)] == ["done", 0]
        assert not trace(it)[0]
        assert [give_about(REFUNDED, it), refunded(it)] == ["done", 1000]

    def test_a_refund_that_came_before_it_is_the_orders(self):
        it = paid()
        refund_order(order_id=it.id, amount=300)
        give(payment(it))
        assert give_about(REFUNDED, it, amount=700) == "done"
        assert not trace(it)[0] and refunded(it) == 300

    def test_a_person_ends_the_payment_that_the_page_showed(self):
        it = cancelled()
        first = payment(it)
        give(first)
        end(it, first)
        with pytest.raises(order_services.NothingUnexpected):
            end(it, first)
        second = payment(it)
        give(second)
        with pytest.raises(order_services.NothingUnexpected):
            end(it, first)
        assert trace(it)[:2] == (True, second["eventId"])
