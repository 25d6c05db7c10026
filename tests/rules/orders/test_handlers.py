"""What events of other services do to orders, and which of them become dead letters, with which reason."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pytest
from django.db.models.functions import Now

from tests.kit.events import (
    FAILED,
    INSUFFICIENT,
    PAID,
    REFUNDED,
    RESERVED,
    envelope,
    handle,
    order,
    received,
    status,
)
from tests.kit.events import (
    give_about as give,
)
from tests.kit.months import Steps
from tests.kit.orders import cancel_order, complete_order, fail_payment, pay_order
from tests.kit.races import together
from tests.kit.words import (
    DomainEvent,
    EmailNotification,
    InboundDeadLetter,
    Order,
    ProcessedEvent,
    erase_person,
    read_timeline,
)

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct"])


NO_AMOUNTS: list[Any] = ["5", "", 0, -1, True, 1.5, 10**12 + 1, [], {}]
NO_CURRENCIES: list[Any] = ["", "usd", "US", "USDT", "U5D", "€€€", " USD", 840, True, []]


class TestSaga:
    def test_payment_and_stock_confirm_an_order_in_either_order(self):
        paid_first, reserved_first = order(), order()
        assert [give(PAID, paid_first), give(RESERVED, paid_first)] == ["done", "done"]
        assert [give(RESERVED, reserved_first), give(PAID, reserved_first)] == ["done", "done"]
        assert status(paid_first) == status(reserved_first) == "confirmed"

    def test_no_stock_cancels_with_the_event_and_the_mail_in_one_transaction_and_the_refund_counts(self):
        it = order()
        give(PAID, it)
        give(INSUFFICIENT, it, reason="INSUFFICIENT_STOCK", productId="TEA-1")
        assert status(it) == "cancelled"
        event = DomainEvent.objects.get(event_type="order.order.cancelled.v1")
        mail = EmailNotification.objects.get(event_type="order.cancelled")
        assert event.payload["reason"] == "INSUFFICIENT_STOCK" and event.payload["productId"] == "TEA-1"
        assert event.payload["wasPaid"] is True and "out of stock" in mail.body_text
        assert event.metadata["correlationId"] == mail.correlation_id == "saga-1"
        assert give(REFUNDED, it, amount=1000) == "done"
        it.refresh_from_db()
        assert (it.status, it.refunded_amount) == ("cancelled", 1000)

    def test_a_payment_of_a_cancelled_order_is_for_a_person(self):
        it = order()
        give(INSUFFICIENT, it)
        assert give(PAID, it) == "dead"
        assert (status(it), InboundDeadLetter.objects.count()) == ("cancelled", 1)

    def test_what_is_no_code_stays_out_of_the_event(self):
        it = order()
        give(INSUFFICIENT, it, reason="Ann ordered too much", productId="ann@example.com")
        event = DomainEvent.objects.get(event_type="order.order.cancelled.v1")
        assert event.payload["reason"] == "INSUFFICIENT_STOCK" and "productId" not in event.payload

    @pytest.mark.parametrize("topic", [RESERVED, INSUFFICIENT])
    def test_what_is_so_already_is_no_change(self, topic):
        it = order()
        give(PAID, it)
        give(topic, it)
        version = Order.objects.get(id=it.id).version
        assert give(topic, it) == "done"
        assert Order.objects.get(id=it.id).version == version

    def test_a_repeat_is_counted_and_changes_nothing(self):
        it = order()
        event = envelope(PAID, {"orderId": str(it.id)})
        results = [handle(received(PAID, event)) for _ in range(3)]
        assert results == ["done", "repeat", "repeat"]
        assert ProcessedEvent.objects.get().receive_count == 3
        assert Order.objects.get(id=it.id).version == 2


class TestFailedPayments:
    def test_each_is_an_event_and_the_order_stays_pending(self):
        it = order()
        assert [give(FAILED, it, reasonCode=code) for code in ("card_declined", "51")] == ["done", "done"]
        assert (status(it), it.version, it.paid_at) == ("pending", 3, None)
        events = DomainEvent.objects.filter(event_type="order.order.payment_failed.v1").order_by("sequence")
        assert [event.payload["reasonCode"] for event in events] == ["card_declined", "51"]
        assert give(PAID, it) == "done"
        texts = [entry.text for entry in read_timeline(order=it) if entry.kind == "change"]
        assert texts[1:] == [
            "Payment failed: card_declined (version 2)",
            "Payment failed: 51 (version 3)",
            "Order paid (version 4)",
        ]

    def test_of_five_within_an_hour_the_first_sends_a_mail_and_all_are_published(self, settings):
        settings.NOTIFY_ON = ["order.payment_failed"]
        it, other = order(), order()
        assert [give(FAILED, it) for _ in range(5)] == ["done"] * 5
        assert give(FAILED, other) == "done"
        mails = EmailNotification.objects.filter(event_type="order.payment_failed")
        assert sorted(mails.values_list("order_id", "idempotency_key")) == sorted(
            (placed.id, f"{placed.id}:order.payment_failed:2") for placed in (it, other)
        )
        assert DomainEvent.objects.filter(event_type="order.order.payment_failed.v1").count() == 6
        assert (status(it), it.version) == ("pending", 6)

    @pytest.mark.parametrize(("minutes", "mails"), [(59, 1), (61, 2)])
    def test_an_hour_after_a_mail_the_next_sends_one_again(self, settings, minutes, mails):
        settings.NOTIFY_ON = ["order.payment_failed"]
        it = order()
        give(FAILED, it)
        EmailNotification.objects.update(created_at=Now() - dt.timedelta(minutes=minutes))
        assert [give(FAILED, it) for _ in range(2)] == ["done", "done"]
        assert EmailNotification.objects.count() == mails

    def test_a_mail_about_another_change_does_not_count(self, settings):
        settings.NOTIFY_ON = ["order.placed", "order.payment_failed"]
        it = order()
        give(FAILED, it)
        assert EmailNotification.objects.filter(event_type="order.payment_failed").count() == 1

    def test_two_at_the_same_moment_send_one_mail(self, settings):
        settings.NOTIFY_ON, settings.FAST_PATH = ["order.payment_failed"], False
        for _ in range(5):
            it = order()
            assert together(3, lambda number, it=it: fail_payment(order_id=it.id).status) == ["pending"] * 3
            assert EmailNotification.objects.filter(order_id=it.id).count() == 1
            assert Order.objects.get(id=it.id).version == 4

    def test_by_default_it_sends_no_mail(self):
        it = order()
        give(FAILED, it, reasonCode="card_declined")
        assert not EmailNotification.objects.exists()

    @pytest.mark.parametrize("code", [None, "", 51, "Ann has no money", "a" * 51, "a@example.com"])
    def test_what_is_no_code_stays_out_of_the_event(self, code):
        it = order()
        assert give(FAILED, it, reasonCode=code) == "done"
        assert "reasonCode" not in DomainEvent.objects.get(event_type="order.order.payment_failed.v1").payload

    def test_a_late_one_of_an_earlier_attempt_changes_nothing(self):
        it = order()
        happened = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=5)
        give(PAID, it)
        late = envelope(FAILED, {"orderId": str(it.id)}, timestamp=happened.isoformat())
        assert handle(received(FAILED, late)) == "done"
        assert (status(it), it.version) == ("paid", 2)

    def test_the_payment_services_times_count_not_those_at_which_events_are_read(self):
        it = order()
        Order.objects.filter(id=it.id).update(created_at=Now() - dt.timedelta(hours=3))
        paid, failed = (dt.datetime.now(dt.UTC) - dt.timedelta(hours=age) for age in (2, 1))
        data = {"orderId": str(it.id)}
        assert handle(received(PAID, envelope(PAID, data, timestamp=paid.isoformat()))) == "done"
        it.refresh_from_db()
        assert it.paid_at == paid
        assert handle(received(FAILED, envelope(FAILED, data, timestamp=failed.isoformat()))) == "dead"

    @pytest.mark.parametrize("hours", [-5, 5])
    def test_a_payment_happens_after_the_order_and_not_in_the_future_whatever_its_clock_says(self, hours):
        it = order()
        wrong = dt.datetime.now(dt.UTC) + dt.timedelta(hours=hours)
        event = envelope(PAID, {"orderId": str(it.id)}, timestamp=wrong.isoformat())
        assert handle(received(PAID, event)) == "done"
        it.refresh_from_db()
        assert it.paid_at is not None and it.created_at <= it.paid_at <= it.updated_at

    def test_for_a_cancelled_order_it_changes_nothing(self):
        it = order()
        cancel_order(order_id=it.id)
        assert give(FAILED, it) == "done"
        assert (status(it), it.version) == ("cancelled", 2)

    def test_to_an_erased_person_it_is_recorded_and_not_sent(self, settings):
        settings.NOTIFY_ON = ["order.payment_failed"]
        it = order()
        erase_person(email="a@example.com", report=Steps(), force=True)
        assert give(FAILED, it) == "done"
        assert EmailNotification.objects.get().status == "suppressed"


class TestMoney:
    @pytest.mark.parametrize(
        "money", [{}, {"amount": 1000}, {"currency": "USD"}, {"amount": 1000, "currency": "USD"}]
    )
    def test_a_payment_may_name_the_orders_amount_and_its_currency(self, money):
        it = order()
        assert give(PAID, it, **money) == "done"
        assert status(it) == "paid"

    @pytest.mark.parametrize(
        ("money", "reason"),
        [
            ({"amount": 1, "currency": "USD"}, "The payment is of 1 USD, the order of 1000 USD"),
            ({"amount": 1}, "The payment is of 1, the order of 1000 USD (in minor units)"),
            (
                {"amount": 1001, "currency": "USD"},
                "of 1001 USD, the order of 1000 USD (in minor units): return it",
            ),
            ({"amount": 1000, "currency": "EUR"}, "The payment is of 1000 EUR, the order of 1000 USD"),
            ({"currency": "EUR"}, "The payment is in EUR, the order in USD: return it, or correct the order"),
        ],
    )
    def test_a_payment_of_other_money_is_refused_with_both_values(self, money, reason):
        it = order()
        assert give(PAID, it, **money) == "dead"
        assert reason in InboundDeadLetter.objects.get().error
        assert reason in DomainEvent.objects.get(event_type=f"{PAID}.dlt").payload["errorMessage"]
        assert (status(it), it.version, it.paid_at) == ("pending", 1, None)
        assert not EmailNotification.objects.exists()

    @pytest.mark.parametrize("topic", [PAID, REFUNDED])
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            *(("amount", value) for value in NO_AMOUNTS),
            *(("currency", value) for value in NO_CURRENCIES),
        ],
    )
    def test_a_value_that_is_no_amount_or_currency_is_refused_without_quoting_it(self, topic, field, value):
        it = order()
        if topic == REFUNDED:
            pay_order(order_id=it.id)
        before = status(it)
        assert give(topic, it, **{field: value}) == "dead"
        error = InboundDeadLetter.objects.get().error
        assert f"data.{field}: " in error and "the order of" not in error
        assert status(it) == before

    @pytest.mark.parametrize("topic", [PAID, REFUNDED])
    @pytest.mark.parametrize("field", ["amount", "currency"])
    def test_a_null_is_refused_because_an_absent_amount_would_be_the_whole_balance(self, topic, field):
        it = order()
        if topic == REFUNDED:
            pay_order(order_id=it.id)
        before = status(it)
        assert give(topic, it, **{field: None}) == "dead"
        error = InboundDeadLetter.objects.get().error
        assert f"data.{field}: " in error and "null" in error
        assert status(it) == before

    @pytest.mark.parametrize("topic", [PAID, REFUNDED])
    @pytest.mark.parametrize("name", ["Amount", "AMOUNT", "aMount", "Currency", "CURRENCY"])
    @pytest.mark.parametrize("more", [{}, {"amount": 10, "currency": "USD"}])
    def test_a_name_in_another_case_is_refused_with_the_right_one(self, topic, name, more):
        it = order()
        if topic == REFUNDED:
            pay_order(order_id=it.id)
        before = status(it)
        assert give(topic, it, **{name: 5} | more) == "dead"
        error = InboundDeadLetter.objects.get().error
        assert f"data.{name}: " in error and f"Use {name.lower()}." in error
        assert status(it) == before

    def test_other_fields_may_be_null_or_unknown(self):
        it = order()
        assert give(FAILED, it, reasonCode=None, REASONCODE="x", amount=None, Amount=None) == "done"
        assert give(PAID, it, paymentAmount=None, fee_amount=None, currencies=None) == "done"
        assert status(it) == "paid"

    @pytest.mark.parametrize("amount", [{}, {"amount": 1000}, {"amount": 10}])
    def test_a_refund_in_another_currency_is_refused_with_both(self, amount):
        it = order()
        pay_order(order_id=it.id)
        assert give(REFUNDED, it, currency="EUR", **amount) == "dead"
        assert "The refund is in EUR, the order in USD" in InboundDeadLetter.objects.get().error
        assert (status(it), it.refunded_amount) == ("paid", 0)
        assert give(REFUNDED, it, currency="USD", **amount) == "done"

    def test_an_order_that_was_paid_before_is_the_reason_whatever_the_amount(self):
        it = order()
        pay_order(order_id=it.id)
        assert give(PAID, it, amount=1, currency="EUR") == "dead"
        assert "the payment was not expected" in InboundDeadLetter.objects.get().error


class TestDead:
    def assert_dead(self, result: str, reason: str) -> None:
        assert result == "dead"
        dead = InboundDeadLetter.objects.get()
        assert reason in dead.error
        note = DomainEvent.objects.get(event_type__endswith=".dlt")
        assert note.event_type == f"{dead.topic}.dlt"
        assert set(note.payload) == {
            "eventId",
            "originalEvent",
            "errorMessage",
            "failedAt",
            "consumerService",
        }
        assert note.payload["consumerService"] == "orders" and reason in note.payload["errorMessage"]

    def test_a_payment_for_a_cancelled_order(self):
        it = order()
        cancel_order(order_id=it.id)
        self.assert_dead(give(PAID, it), "the payment was not expected")
        assert status(it) == "cancelled"

    def test_a_second_payment(self):
        it = order()
        pay_order(order_id=it.id)
        self.assert_dead(give(PAID, it), "the payment was not expected")

    def test_a_payment_that_failed_after_the_order_was_paid(self):
        it = order()
        give(PAID, it)
        self.assert_dead(give(FAILED, it), "check whether the money is there")
        assert status(it) == "paid"

    def test_a_failed_payment_of_a_paid_order_that_does_not_say_when(self):
        it = order()
        give(PAID, it)
        event = envelope(FAILED, {"orderId": str(it.id)})
        del event["timestamp"]
        self.assert_dead(handle(received(FAILED, event)), "check whether the money is there")

    @pytest.mark.parametrize("topic", [PAID, FAILED, REFUNDED, RESERVED, INSUFFICIENT])
    def test_an_unknown_order(self, topic):
        self.assert_dead(give(topic, uuid.uuid4()), "There is no order")

    def test_a_refund_of_more_than_is_left(self):
        it = order()
        pay_order(order_id=it.id)
        self.assert_dead(give(REFUNDED, it, amount=1001), "1001")
        assert status(it) == "paid"

    def test_no_stock_for_a_completed_order(self):
        it = order()
        pay_order(order_id=it.id)
        complete_order(order_id=it.id)
        self.assert_dead(give(INSUFFICIENT, it), "completed")

    @pytest.mark.parametrize(
        ("value", "reason"),
        [
            (b"", "must be JSON"),
            (b"{", "must be JSON"),
            (b"\xff\x00", "must be UTF-8"),
            (b"[" * 50_000 + b"]" * 50_000, "nested too deeply"),
            (b"[]", "not a JSON object"),
            (b"{}", "eventId"),
            (envelope(PAID, {}, eventId="5"), "eventId"),
            (envelope(PAID, {}, eventType="other.v1"), "eventType"),
            (envelope(PAID, {}, version=2), "version"),
            (envelope(PAID, {}, version="1"), "version"),
            (envelope(PAID, {}, source=None), "source"),
            (envelope(PAID, ["x"]), "data"),
            (envelope(PAID, {}), "orderId"),
            (envelope(PAID, {"orderId": 7}), "orderId"),
            (envelope(PAID, {"orderId": str(uuid.uuid4()), "x": "y" * 1_000_001}), "bytes"),
        ],
    )
    def test_what_is_no_envelope(self, value, reason):
        message = received(PAID, value)
        self.assert_dead(handle(message), reason)
        assert handle(message) == "repeat"
        assert InboundDeadLetter.objects.count() == 1
