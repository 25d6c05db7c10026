"""A refund counts once, whatever the way, and one that may have come by two ways is told."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import IntegrityError
from django.db.models import F, Sum

from orders.models import OrderRefund
from orders.services import RefundExists
from tests.kit.events import REFUNDED, give_about, order, refunded, status, tell
from tests.kit.months import Steps
from tests.kit.orders import cancel_order, pay_order, refund_order
from tests.kit.words import (
    DomainEvent,
    EmailNotification,
    InboundDeadLetter,
    InvalidTransition,
    Order,
    RefundExceedsBalance,
    erase_person,
    export_person,
    read_timeline,
)

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])


def paid() -> Order:
    it = order()
    return pay_order(order_id=it.id)


def by_api(it: Order, **refund: Any) -> list[str]:
    """Refund as the API does, and return its events so far."""
    refund_order(order_id=it.id, **refund)
    events = DomainEvent.objects.filter(aggregate_id=it.id, event_type__contains="refunded")
    return list(events.order_by("sequence").values_list("event_type", flat=True))


def by_event(it: Order, **data: Any) -> str:
    return give_about(REFUNDED, it, **data)


def doubts(it: Order) -> list[str]:
    it.refresh_from_db()
    return [entry.text for entry in read_timeline(order=it) if entry.what == "warning"]


def rows(it: Order) -> list[tuple[str | None, int, str]]:
    refunds = OrderRefund.objects.filter(order_id=it.id).order_by("at")
    return list(refunds.values_list("refund_id", "amount", "way"))


def grow_older(minutes: int) -> None:
    OrderRefund.objects.update(at=F("at") - dt.timedelta(minutes=minutes))


class TestOneId:
    @pytest.mark.parametrize("is_api_first", [True, False])
    def test_three_reports_of_one_refund_count_once(self, is_api_first):
        it = paid()
        if is_api_first:
            by_api(it, amount=392, refund_id="re_1")
        assert [by_event(it, amount=392, refundId="re_1") for _ in range(2)] == ["done", "done"]
        if not is_api_first:
            by_api(it, amount=392, refund_id="re_1")
        assert (refunded(it), it.version) == (392, 3)
        assert rows(it) == [("re_1", 392, "api" if is_api_first else "event")]
        assert EmailNotification.objects.filter(event_type__contains="refunded").count() == 1
        assert DomainEvent.objects.filter(event_type__contains="refunded").count() == 1
        assert doubts(it) == []

    def test_without_an_amount_it_is_the_same_refund(self):
        it = paid()
        by_api(it, amount=392, refund_id="re_1")
        assert by_event(it, refundId="re_1") == "done"
        refund_order(order_id=it.id, refund_id="re_1")
        assert refunded(it) == 392

    def test_the_whole_balance_is_the_amount_of_a_refund_without_one(self):
        it = paid()
        by_api(it, amount=8)
        by_api(it, refund_id="re_1")
        assert by_event(it, amount=992, refundId="re_1") == "done"
        assert (status(it), refunded(it)) == ("refunded", 1000)

    def test_another_amount_is_refused_and_tells_the_first(self):
        it = paid()
        by_api(it, amount=392, refund_id="re_1")
        with pytest.raises(RefundExists) as refusal:
            refund_order(order_id=it.id, amount=393, refund_id="re_1")
        assert refusal.value.amount == 392
        assert by_event(it, amount=391, refundId="re_1") == "dead"
        assert "A refund of 392 has this id" in InboundDeadLetter.objects.get().error
        assert (refunded(it), it.version) == (392, 3)

    @pytest.mark.parametrize("amount", [None, 1000])
    def test_it_is_found_before_status_and_balance_are_checked(self, amount):
        it = paid()
        by_api(it, refund_id="re_1")
        assert by_event(it, refundId="re_1", **({"amount": amount} if amount else {})) == "done"
        with pytest.raises(InvalidTransition):
            refund_order(order_id=it.id, amount=amount, refund_id="re_2")
        assert rows(it) == [("re_1", 1000, "api")]

    def test_a_cancelled_order_is_refunded_once(self):
        it = paid()
        cancel_order(order_id=it.id)
        assert [by_event(it, amount=392, refundId="re_1") for _ in range(3)] == ["done"] * 3
        by_api(it, amount=392, refund_id="re_1")
        assert (status(it), refunded(it)) == ("cancelled", 392)
        by_api(it, refund_id="re_2")
        with pytest.raises(RefundExceedsBalance):
            refund_order(order_id=it.id, amount=1, refund_id="re_3")
        assert rows(it) == [("re_1", 392, "event"), ("re_2", 608, "api")]

    def test_a_refused_refund_leaves_its_id_free(self):
        it = order()
        assert by_event(it, amount=392, refundId="re_1") == "dead"
        pay_order(order_id=it.id)
        assert by_event(it, amount=392, refundId="re_1") == "done"
        assert refunded(it) == 392

    def test_the_id_of_another_orders_refund_is_another_refund(self):
        first, second = paid(), paid()
        for it in (first, second):
            by_api(it, amount=392, refund_id="re_1")
        assert refunded(first) == refunded(second) == 392

    def test_ids_that_differ_in_case_are_two_refunds(self):
        it = paid()
        assert [by_event(it, amount=1, refundId=id) for id in ("re_1", "RE_1")] == ["done", "done"]
        assert refunded(it) == 2

    def test_another_currency_is_refused_also_for_a_repeat(self):
        it = paid()
        by_api(it, amount=392, refund_id="re_1")
        assert by_event(it, amount=392, refundId="re_1", currency="EUR") == "dead"

    def test_another_systems_order_has_none(self, settings):
        settings.ORDER_SOURCES = ["shop-a"]
        id = "0199aaaa-0000-7000-8000-000000000001"
        assert tell("paid", id, 1) == "done"
        assert by_event(Order.objects.get(), amount=1, refundId="re_1") == "dead"
        assert not OrderRefund.objects.exists()

    @pytest.mark.parametrize("id", ["", " ", "x" * 101, 5, True, ["re_1"], "ann@example.com", "re\n1"])
    def test_what_is_no_id_is_refused_without_quoting_it(self, id):
        it = paid()
        assert by_event(it, amount=392, refundId=id) == "dead"
        error = InboundDeadLetter.objects.get().error
        assert "data.refundId: " in error and "ann@" not in error
        assert refunded(it) == 0

    def test_the_table_refuses_a_second_row_of_an_id(self):
        it = paid()
        values = {"order": it, "amount": 1, "way": "api", "at": it.created_at}
        for _ in range(2):
            OrderRefund.objects.create(refund_id=None, **values)
        OrderRefund.objects.create(refund_id="re_1", **values)
        with pytest.raises(IntegrityError):
            OrderRefund.objects.create(refund_id="re_1", **values)


class TestWithoutAnId:
    @pytest.mark.parametrize(("api_id", "event_id"), [(None, None), (None, "re_1"), ("re_1", None)])
    @pytest.mark.parametrize("is_api_first", [True, False])
    def test_equal_refunds_by_two_ways_count_and_are_told(self, api_id, event_id, is_api_first):
        it = paid()
        ways = [
            lambda: by_api(it, amount=392, refund_id=api_id),
            lambda: by_event(it, amount=392, **({"refundId": event_id} if event_id else {})),
        ]
        for way in ways if is_api_first else reversed(ways):
            way()
        assert refunded(it) == 784
        (doubt,) = doubts(it)
        ways = "over the API and as an event" if is_api_first else "as an event and over the API"
        assert doubt.startswith(f"Equal refunds came {ways} within an hour, and both count.")

    @pytest.mark.parametrize(("minutes", "count"), [(59, 1), (61, 0)])
    def test_they_are_told_for_an_hour(self, minutes, count):
        it = paid()
        by_api(it, amount=392)
        grow_older(minutes)
        by_event(it, amount=392)
        assert (refunded(it), len(doubts(it))) == (784, count)

    def test_others_are_not_told(self):
        by_api_twice, by_event_twice, unequal, with_ids = orders = [paid() for _ in range(4)]
        for _ in range(2):
            by_api(by_api_twice, amount=392)
            by_event(by_event_twice, amount=392)
        by_api(unequal, amount=392)
        by_event(unequal, amount=391)
        by_api(with_ids, amount=392, refund_id="re_1")
        by_event(with_ids, amount=392, refundId="re_2")
        assert [refunded(it) for it in orders] == [784, 784, 783, 784]
        assert [doubts(it) for it in orders] == [[]] * 4

    def test_each_has_a_row_and_their_sum_is_the_refunded_amount(self):
        it = paid()
        by_api(it, amount=100)
        by_event(it, amount=100)
        by_event(it)
        assert rows(it) == [(None, 100, "api"), (None, 100, "event"), (None, 800, "event")]
        assert OrderRefund.objects.aggregate(sum=Sum("amount"))["sum"] == refunded(it) == 1000

    def test_a_null_id_is_none(self):
        it = paid()
        assert [by_event(it, amount=1, refundId=None) for _ in range(2)] == ["done", "done"]
        assert refunded(it) == 2


def test_an_export_has_the_refunds_and_an_erasure_keeps_them():
    it = paid()
    by_api(it, amount=392, refund_id="re_1")
    by_api(paid(), amount=1)
    Order.objects.exclude(id=it.id).update(email="b@example.com")
    (refund,) = export_person(email=it.email, report=Steps())["refunds"]
    assert (refund["order_id"], refund["refund_id"], refund["amount"]) == (it.id, "re_1", 392)
    erase_person(email=it.email, report=Steps(), force=True)
    assert by_event(it, amount=392, refundId="re_1") == "done"
    assert refunded(it) == 392
