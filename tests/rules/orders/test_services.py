"""What a change of an order writes, all of it or nothing. The API's own tests are in tests/api."""

from __future__ import annotations

import uuid
from contextlib import nullcontext

import pytest
from django.db import DatabaseError, transaction
from opentelemetry.trace import INVALID_SPAN

from orders.services import OrderNotFound
from runtime.database.transactions import TransactionRequired
from runtime.telemetry import tracing
from tests.kit.orders import cancel_order, complete_order, confirm_order, pay_order, place_order, refund_order
from tests.kit.races import broken, together
from tests.kit.words import (
    Action,
    DomainEvent,
    EmailNotification,
    InvalidTransition,
    Order,
    RefundExceedsBalance,
    allowed_actions,
    context,
    write_event,
)

pytestmark = pytest.mark.django_db(transaction=True)
S = Order.Status
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def place(**fields):
    return place_order(**{"user_id": uuid.uuid4(), "email": "a@example.com", "total_amount": 1000} | fields)


def events(order: Order) -> list[tuple[str, int]]:
    rows = DomainEvent.objects.filter(aggregate_id=order.id).order_by("position")
    return [(event.event_type.split(".")[2], event.sequence) for event in rows]


def mails(order: Order) -> list[str]:
    return list(
        EmailNotification.objects.filter(order_id=order.id)
        .order_by("id")
        .values_list("event_type", flat=True)
    )


def reach(status):
    """Bring an order to `status` by the shortest way."""
    order = place()
    ways = {
        S.PENDING: [],
        S.PAID: [pay_order],
        S.CONFIRMED: [pay_order, confirm_order],
        S.COMPLETED: [pay_order, complete_order],
        S.CANCELLED: [cancel_order],
        S.PART_REFUNDED: [pay_order, lambda order_id: refund_order(order_id=order_id, amount=400)],
        S.REFUNDED: [pay_order, refund_order],
    }
    for step in ways[S(status)]:
        order = step(order_id=order.id)
    assert order.status == status
    return order


DO = {
    Action.PAY: pay_order,
    Action.CONFIRM: confirm_order,
    Action.COMPLETE: complete_order,
    Action.CANCEL: cancel_order,
    Action.REFUND: refund_order,
}
ALLOWED = {
    S.PENDING: {Action.PAY: S.PAID, Action.CONFIRM: S.PENDING, Action.CANCEL: S.CANCELLED},
    S.PAID: {
        Action.CONFIRM: S.CONFIRMED,
        Action.COMPLETE: S.COMPLETED,
        Action.CANCEL: S.CANCELLED,
        Action.REFUND: S.REFUNDED,
    },
    S.CONFIRMED: {Action.COMPLETE: S.COMPLETED, Action.CANCEL: S.CANCELLED, Action.REFUND: S.REFUNDED},
    S.COMPLETED: {Action.REFUND: S.REFUNDED},
    S.PART_REFUNDED: {Action.COMPLETE: S.PART_REFUNDED, Action.REFUND: S.REFUNDED},
    S.CANCELLED: {},
    S.REFUNDED: {},
}


@pytest.mark.parametrize("status", list(S))
@pytest.mark.parametrize("action", list(Action))
def test_every_action_in_every_status_does_what_the_contract_says_or_changes_nothing(status, action):
    order = reach(status)
    before = Order.objects.values().get(id=order.id)
    written = (DomainEvent.objects.count(), EmailNotification.objects.count())
    expected = ALLOWED[status].get(action)
    if expected is None:
        with pytest.raises(InvalidTransition) as refusal:
            DO[action](order_id=order.id)
        assert refusal.value.status == status
        assert set(refusal.value.allowed) == {str(name) for name in ALLOWED[status]}
        assert Order.objects.values().get(id=order.id) == before
        assert (DomainEvent.objects.count(), EmailNotification.objects.count()) == written
        return
    changed = DO[action](order_id=order.id)
    stored = Order.objects.get(id=order.id)
    remembered_only = (status, action) == (S.PENDING, Action.CONFIRM)
    assert stored.status == changed.status == expected
    assert stored.version == before["version"] + (0 if remembered_only else 1)
    assert DomainEvent.objects.count() == written[0] + (0 if remembered_only else 1)
    assert stored.updated_at == changed.updated_at > before["updated_at"]


def test_placing_writes_the_event_but_by_default_no_email():
    order = place()
    assert (order.status, order.version) == (S.PENDING, 1)
    assert events(order) == [("placed", 1)]
    assert mails(order) == []


def test_an_event_has_no_name_and_no_address_in_it():
    order = place(
        email="who@example.com",
        name="Wilhelmine",
        items=[{"sku": "s", "name": "For Wilhelmine", "quantity": 1, "unit_amount": 1000}],
    )
    pay_order(order_id=order.id)
    cancel_order(order_id=order.id, reason="Wilhelmine rang")
    texts = [str(event.payload) + str(event.metadata) for event in DomainEvent.objects.all()]
    assert len(texts) == 3
    assert [text for text in texts if "who@example.com" in text or "Wilhelmine" in text] == []


def test_a_change_carries_the_correlation_id_of_its_work():
    order = place()
    with context.working_for(context.Context("corr-1", idempotency_key="key-1")):
        pay_order(order_id=order.id)
    assert EmailNotification.objects.get().correlation_id == "corr-1"
    event = DomainEvent.objects.get(event_type="order.order.paid.v1")
    assert event.metadata["correlationId"] == "corr-1"
    assert event.metadata["idempotencyKey"] == "key-1"
    assert event.metadata["userId"] == str(order.user_id)


def test_paying_an_order_whose_stock_was_reserved_confirms_it_too(settings):
    settings.NOTIFY_ON = ["order.paid", "order.confirmed"]
    order = place()
    confirm_order(order_id=order.id)
    confirm_order(order_id=order.id)  # remembering twice is once
    assert events(order) == [("placed", 1)]
    order = pay_order(order_id=order.id)
    assert (order.status, order.version) == (S.CONFIRMED, 3)
    assert events(order) == [("placed", 1), ("paid", 2), ("confirmed", 3)]
    statuses = DomainEvent.objects.order_by("position").values_list("payload__status", flat=True)
    assert list(statuses) == ["pending", "paid", "confirmed"]
    assert mails(order) == ["order.paid", "order.confirmed"]


def test_a_cancelled_order_that_was_paid_can_be_refunded_and_stays_cancelled():
    order = reach(S.PAID)
    cancel_order(order_id=order.id)
    order = refund_order(order_id=order.id, amount=300)
    assert (order.status, order.refunded_amount) == (S.CANCELLED, 300)
    order = refund_order(order_id=order.id)
    assert (order.status, order.refunded_amount) == (S.CANCELLED, 1000)
    with pytest.raises(RefundExceedsBalance):
        refund_order(order_id=order.id)
    assert [name for name, _ in events(order)][-2:] == ["part_refunded", "refunded"]


def test_a_part_refunded_order_is_completed_once():
    order = reach(S.PART_REFUNDED)
    order = complete_order(order_id=order.id)
    assert order.status == S.PART_REFUNDED and order.completed_at is not None
    with pytest.raises(InvalidTransition):
        complete_order(order_id=order.id)
    assert "complete" not in allowed_actions(order=order)


@pytest.mark.parametrize("amount", [1001, 601, 0, -1])
def test_refunding_more_than_is_left_or_nothing_changes_nothing(amount):
    order = reach(S.PART_REFUNDED)
    with pytest.raises(RefundExceedsBalance) as refusal:
        refund_order(order_id=order.id, amount=amount)
    assert refusal.value.left == 600
    assert Order.objects.get(id=order.id).refunded_amount == 400


def test_concurrent_partial_refunds_add_up_exactly():
    order = reach(S.PAID)

    def refund(_):
        try:
            refund_order(order_id=order.id, amount=70)
            return 70
        except (RefundExceedsBalance, InvalidTransition):
            return 0

    refunded = sum(together(20, refund))
    stored = Order.objects.get(id=order.id)
    assert refunded == stored.refunded_amount == 980
    amounts = DomainEvent.objects.filter(event_type__contains="refunded").values_list(
        "payload__amount", flat=True
    )
    assert sum(amounts) == 980
    sequences = [sequence for _, sequence in events(stored)]
    assert sequences == list(range(1, stored.version + 1))


def test_a_change_is_linked_to_the_trace_that_placed_its_order(monkeypatch):
    links = []

    def span(name, **options):
        if name == "save order":
            links.append(options["links"])
        return INVALID_SPAN

    monkeypatch.setattr(tracing, "begin", span)
    with context.working_for(context.Context("corr-1", traceparent=TRACE)):
        order = place()
    with context.working_for(context.Context("corr-2", traceparent=TRACE.replace("4bf9", "ffff"))):
        pay_order(order_id=order.id)
    assert links == [[""], [TRACE]]


def test_an_unknown_order_is_an_error_of_its_own():
    with pytest.raises(OrderNotFound):
        pay_order(order_id=uuid.uuid4())


@pytest.mark.parametrize("table", ["orders", "outbox_events", "email_notifications"])
@pytest.mark.parametrize("joins", [False, True])
def test_a_change_that_fails_in_one_table_leaves_nothing_in_the_others(table, joins):
    order = place()
    with broken(table), pytest.raises(DatabaseError), transaction.atomic() if joins else nullcontext():
        pay_order(order_id=order.id)
    assert Order.objects.get(id=order.id).status == S.PENDING
    assert events(order) == [("placed", 1)]
    assert mails(order) == []
    assert pay_order(order_id=order.id).status == S.PAID


def test_an_event_is_refused_outside_a_transaction():
    with pytest.raises(TransactionRequired):
        write_event(aggregate_type="order", aggregate_id=uuid.uuid4(), event_type="t", sequence=1, payload={})
