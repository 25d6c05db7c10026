"""What a caller reads when an order does not allow what was asked; which is allowed is in test_services."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from django.db import IntegrityError, transaction

from orders.transitions import check, is_allowed
from tests.kit.orders import make_order
from tests.kit.words import Action, InvalidTransition, Order, RefundExceedsBalance, allowed_actions


def refusal(status: str, action: Action, **fields: object) -> InvalidTransition:
    with pytest.raises(InvalidTransition) as caught:
        check(order=Order(status=status, **fields), action=action)
    return caught.value


def test_a_refusal_names_the_status_the_action_and_the_allowed_ones():
    error = refusal("pending", Action.REFUND)
    assert str(error) == (
        "An order that is pending cannot be changed by 'refund'. Allowed actions: pay, confirm, cancel."
    )
    assert (error.status, error.action) == ("pending", "refund")
    assert error.allowed_statuses == ["paid", "pending", "cancelled"]
    assert error.allowed == {"pay": ("paid",), "confirm": ("pending",), "cancel": ("cancelled",)}


def test_a_refusal_says_when_the_order_allows_nothing():
    assert str(refusal("refunded", Action.PAY)).endswith("Allowed actions: none.")
    assert refusal("cancelled", Action.REFUND).allowed_statuses == []


def test_statuses_are_named_once():
    assert allowed_actions(order=Order(status="part_refunded")) == {
        "complete": ("part_refunded",),
        "refund": ("part_refunded", "refunded"),
    }
    error = refusal("part_refunded", Action.PAY)
    assert error.allowed_statuses == ["part_refunded", "refunded"]


@pytest.mark.parametrize(
    ("amount", "left", "words"),
    [
        (500, 200, "Only 200 is left to refund, not 500."),
        (500, 0, "Nothing is left to refund, not 500."),
        (None, 0, "Nothing is left to refund."),
    ],
)
def test_a_refund_of_too_much_says_what_is_left(amount, left, words):
    error = RefundExceedsBalance(amount=amount, left=left)
    assert (str(error), error.left) == (words, left)


def test_a_status_of_a_newer_release_is_refused_and_no_error():
    error = refusal("teleported", Action.PAY)
    assert (error.status, error.allowed) == ("teleported", {})


@pytest.mark.django_db
@pytest.mark.parametrize("status", Order.Status.values)
def test_an_order_is_in_flight_while_a_step_forward_is_left(status):
    """Erasing a person asks this: a new status that is forgotten in `in_flight()` would lose its e-mails."""
    refunded = {"part_refunded": 1, "refunded": 12_345}.get(status, 0)
    order = make_order(status=status, refunded_amount=refunded)
    forward = set(Action) - {Action.CANCEL, Action.REFUND}
    assert Order.objects.in_flight().filter(id=order.id).exists() is any(
        is_allowed(order=order, action=action) for action in forward
    )


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("status", "refunded", "right"),
    [
        ("paid", 0, True),
        ("paid", 1, False),
        ("part_refunded", 0, False),
        ("part_refunded", 1, True),
        ("part_refunded", 100, False),
        ("refunded", 99, False),
        ("refunded", 100, True),
        ("refunded", 101, False),
        ("cancelled", -1, False),
        ("cancelled", 0, True),
        ("cancelled", 40, True),
        ("cancelled", 100, True),
        ("cancelled", 101, False),
        ("pending", -1, False),
        ("teleported", 0, False),
        ("paid\n", 0, False),
    ],
)
def test_a_status_that_does_not_fit_what_was_refunded_is_refused_by_the_table(status, refunded, right):
    order = make_order(total_amount=100)
    with pytest.raises(IntegrityError) if not right else nullcontext(), transaction.atomic():
        Order.objects.filter(id=order.id).update(status=status, refunded_amount=refunded)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "wrong", [{"total_amount": 0}, {"total_amount": 10**12 + 1}, {"currency": "eur"}, {"currency": "EU"}]
)
def test_money_that_cannot_be_is_refused_by_the_table(wrong):
    order = make_order()
    with pytest.raises(IntegrityError), transaction.atomic():
        Order.objects.filter(id=order.id).update(**wrong)
