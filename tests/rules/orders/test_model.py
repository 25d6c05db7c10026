"""Orders under random changes, against a second statement of the table of transitions."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.kit import orders
from tests.kit.orders import place_order, refund_order
from tests.kit.stateful import many
from tests.kit.words import (
    DomainEvent,
    EmailNotification,
    InvalidTransition,
    Order,
    RefundExceedsBalance,
)

pytestmark = pytest.mark.django_db
TOTAL = 1000


@dataclasses.dataclass
class Bought:
    """What the model knows of one order."""

    status: str = "pending"
    refunded: int = 0
    paid: bool = False
    reserved: bool = False
    completed: bool = False
    events: list[str] = dataclasses.field(default_factory=lambda: ["placed"])

    def pay(self) -> bool:
        if self.status != "pending":
            return False
        self.paid = True
        self.tell("paid", "paid")
        if self.reserved:
            self.tell("confirmed", "confirmed")
        return True

    def confirm(self) -> bool:
        if self.status == "pending":
            self.reserved = True
            return True
        if self.status != "paid":
            return False
        self.tell("confirmed", "confirmed")
        return True

    def complete(self) -> bool:
        if self.completed or self.status not in ("paid", "confirmed", "part_refunded"):
            return False
        self.completed = True
        self.tell(self.status if self.status == "part_refunded" else "completed", "completed")
        return True

    def cancel(self) -> bool:
        if self.status not in ("pending", "paid", "confirmed"):
            return False
        self.tell("cancelled", "cancelled")
        return True

    def refund(self, amount: int | None) -> bool:
        if self.status not in ("paid", "confirmed", "completed", "part_refunded") and not (
            self.status == "cancelled" and self.paid
        ):
            return False
        left = TOTAL - self.refunded
        wanted = left if amount is None else amount
        if not 0 < wanted <= left:
            return False
        self.refunded += wanted
        wholly = self.refunded == TOTAL
        status = "cancelled" if self.status == "cancelled" else "refunded" if wholly else "part_refunded"
        self.tell(status, "refunded" if wholly else "part_refunded")
        return True

    def tell(self, status: str, event: str) -> None:
        self.status = status
        self.events.append(event)


MAILED = {"paid", "completed", "cancelled", "refunded", "part_refunded"}


class Shop(RuleBasedStateMachine):
    """Places orders and does to them what may and what may not be done."""

    def __init__(self) -> None:
        super().__init__()
        for model in (Order, DomainEvent, EmailNotification):
            model.objects.all().delete()
        self.orders: dict[uuid.UUID, Bought] = {}

    @rule()
    def place(self) -> None:
        order = place_order(user_id=uuid.uuid4(), email="a@example.com", total_amount=TOTAL)
        self.orders[order.id] = Bought()

    @rule(number=st.integers(0, 5), action=st.sampled_from(["pay", "confirm", "complete", "cancel"]))
    def change(self, number: int, action: str) -> None:
        self.do(number, getattr(orders, f"{action}_order"), lambda bought: getattr(bought, action)())

    @rule(number=st.integers(0, 5), amount=st.one_of(st.none(), st.integers(-1, TOTAL + 1)))
    def refund(self, number: int, amount: int | None) -> None:
        self.do(
            number,
            lambda order_id: refund_order(order_id=order_id, amount=amount),
            lambda bought: bought.refund(amount),
        )

    @rule(number=st.integers(0, 5), action=st.sampled_from(["pay", "complete", "cancel", "refund"]))
    def change_in_a_transaction_that_fails(self, number: int, action: str) -> None:
        """Nothing of it stays."""
        if not self.orders:
            return
        id = list(self.orders)[number % len(self.orders)]
        try:
            with transaction.atomic():
                getattr(orders, f"{action}_order")(order_id=id)
                raise _Crash
        except (_Crash, InvalidTransition, RefundExceedsBalance):
            pass

    def do(self, number: int, change: Callable[..., Any], expect: Callable[[Bought], bool]) -> None:
        if not self.orders:
            return
        id = list(self.orders)[number % len(self.orders)]
        allowed = expect(self.orders[id])
        try:
            with transaction.atomic():  # a refusal takes back what it must not have written
                change(order_id=id)
        except (InvalidTransition, RefundExceedsBalance):
            assert not allowed
        else:
            assert allowed

    @invariant()
    def orders_are_as_the_model_says(self) -> None:
        stored = {
            order.id: (order.status, order.refunded_amount, order.version, order.paid_at is not None)
            for order in Order.objects.all()
        }
        assert stored == {
            id: (order.status, order.refunded, len(order.events), order.paid)
            for id, order in self.orders.items()
        }

    @invariant()
    def every_change_has_its_event_and_its_mail_and_nothing_else_has(self) -> None:
        events: dict[uuid.UUID, list[tuple[int, str]]] = {id: [] for id in self.orders}
        for id, topic, sequence in DomainEvent.objects.order_by("position").values_list(
            "aggregate_id", "event_type", "sequence"
        ):
            events[id].append((sequence, topic.split(".")[2]))
        assert events == {id: list(enumerate(order.events, start=1)) for id, order in self.orders.items()}
        keys = set(EmailNotification.objects.values_list("idempotency_key", flat=True))
        assert keys == {
            f"{id}:order.{event}:{number}"
            for id, order in self.orders.items()
            for number, event in enumerate(order.events, start=1)
            if event in MAILED
        }


class _Crash(Exception):
    """Whatever comes between a change and its commit."""


def test_the_life_of_orders_is_the_models():
    run_state_machine_as_test(Shop, settings=many)
