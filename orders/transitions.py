"""The one table of what may happen to an order. Pure: reads an order, changes nothing."""

from __future__ import annotations

import enum

from orders.models import Order

S = Order.Status


class Action(enum.StrEnum):
    """What can be done to an order; the last part of its URL."""

    PAY = "pay"
    CONFIRM = "confirm"
    COMPLETE = "complete"
    CANCEL = "cancel"
    REFUND = "refund"


#: action -> status before -> the statuses that may follow. A refund's amount chooses among its two.
TRANSITIONS: dict[Action, dict[S, tuple[S, ...]]] = {
    Action.PAY: {S.PENDING: (S.PAID,)},
    Action.CONFIRM: {S.PENDING: (S.PENDING,), S.PAID: (S.CONFIRMED,)},
    Action.COMPLETE: {
        S.PAID: (S.COMPLETED,),
        S.CONFIRMED: (S.COMPLETED,),
        S.PART_REFUNDED: (S.PART_REFUNDED,),
    },
    Action.CANCEL: {S.PENDING: (S.CANCELLED,), S.PAID: (S.CANCELLED,), S.CONFIRMED: (S.CANCELLED,)},
    Action.REFUND: {
        S.PAID: (S.PART_REFUNDED, S.REFUNDED),
        S.CONFIRMED: (S.PART_REFUNDED, S.REFUNDED),
        S.COMPLETED: (S.PART_REFUNDED, S.REFUNDED),
        S.PART_REFUNDED: (S.PART_REFUNDED, S.REFUNDED),
        S.CANCELLED: (S.CANCELLED, S.CANCELLED),
    },
}


class InvalidTransition(Exception):
    """The order's status does not allow the action. `allowed` maps possible actions to what they lead to."""

    def __init__(self, *, order: Order, action: Action) -> None:
        self.status = order.status
        self.action = action
        self.allowed = allowed_actions(order=order)
        statuses = ", ".join(self.allowed_statuses) or "none"
        super().__init__(
            f"An order that is {self.status} cannot be changed by '{action}'."
            f" Statuses it can go to: {statuses}."
        )

    @property
    def allowed_statuses(self) -> list[str]:
        """The statuses that the order can still go to, without repeats."""
        return list(dict.fromkeys(status for follow in self.allowed.values() for status in follow))


class RefundExceedsBalance(Exception):
    """More was to be refunded than is left; `left` is in minor units."""

    def __init__(self, *, amount: int | None, left: int) -> None:
        self.amount = amount
        self.left = left
        asked = "Nothing" if left == 0 else f"Only {left}"
        super().__init__(f"{asked} is left to refund" + (f", not {amount}." if amount else "."))


def is_allowed(*, order: Order, action: Action) -> bool:
    """This function will say whether the table and the order's own history allow `action`."""
    if S(order.status) not in TRANSITIONS[action]:
        return False
    if action is Action.COMPLETE:
        return order.completed_at is None
    if action is Action.REFUND and order.status == S.CANCELLED:
        return order.paid_at is not None
    return True


def allowed_actions(*, order: Order) -> dict[str, tuple[str, ...]]:
    """This function will map each action that the order allows now to the statuses that it may lead to."""
    return {
        str(action): tuple(dict.fromkeys(str(status) for status in TRANSITIONS[action][S(order.status)]))
        for action in Action
        if is_allowed(order=order, action=action)
    }


def check(*, order: Order, action: Action) -> None:
    """This function will raise `InvalidTransition` unless `order` allows `action`."""
    if not is_allowed(order=order, action=action):
        raise InvalidTransition(order=order, action=action)


def refunded_status(*, order: Order, left: int) -> S:
    """This function will choose the status after a refund that leaves `left` minor units."""
    partly, wholly = TRANSITIONS[Action.REFUND][S(order.status)]
    return partly if left else wholly
