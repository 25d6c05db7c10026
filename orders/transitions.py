"""The table of an order's transitions. orders.services takes each next status from here.

These functions read an order and change nothing.
"""

from __future__ import annotations

import enum

from orders.models import Order

S = Order.Status


class Action(enum.StrEnum):
    """An action on an order. The value is the last part of the API's URL."""

    PAY = "pay"
    CONFIRM = "confirm"
    COMPLETE = "complete"
    CANCEL = "cancel"
    REFUND = "refund"


#: action -> status before -> status after. A refund has two: after a part of the balance and after all of it.
#: The keys compare equal to text: an unknown status of a newer release allows no action.
TRANSITIONS: dict[Action, dict[str, tuple[S, ...]]] = {
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


class ChangeRefused(Exception):
    """The order was not changed. The text says why."""


class ExternallyOwned(ChangeRefused):
    """Another system owns the order. `source` is its name."""

    def __init__(self, *, order: Order) -> None:
        self.source = order.source
        super().__init__(f"The order belongs to {order.source}. Only {order.source} can change it.")


class InvalidTransition(ChangeRefused):
    """The order's status does not allow the action. `allowed` maps the possible actions to their statuses."""

    def __init__(self, *, order: Order, action: str) -> None:
        self.status = order.status
        self.action = action
        self.allowed = allowed_actions(order=order)
        actions = ", ".join(self.allowed) or "none"
        super().__init__(
            f"An order that is {self.status} cannot be changed by '{action}'. Allowed actions: {actions}."
        )

    @property
    def allowed_statuses(self) -> list[str]:
        """The statuses that the order can still get, each once."""
        return list(dict.fromkeys(status for follow in self.allowed.values() for status in follow))


def is_allowed(*, order: Order, action: Action) -> bool:
    """Return whether this system owns the order, and its status and its times allow `action`."""
    if order.source or order.status not in TRANSITIONS[action]:
        return False
    if action is Action.COMPLETE:
        return order.completed_at is None
    if action is Action.REFUND and order.status == S.CANCELLED:
        return order.paid_at is not None
    return True


def allowed_actions(*, order: Order) -> dict[str, tuple[str, ...]]:
    """Map each action that the order allows now to the statuses that it may lead to."""
    return {
        str(action): tuple(dict.fromkeys(str(status) for status in TRANSITIONS[action][order.status]))
        for action in Action
        if is_allowed(order=order, action=action)
    }


def check(*, order: Order, action: Action) -> None:
    """Raise `ExternallyOwned` or `InvalidTransition` unless `order` allows `action`."""
    if order.source:
        raise ExternallyOwned(order=order)
    if not is_allowed(order=order, action=action):
        raise InvalidTransition(order=order, action=action)


def next_status(*, order: Order, action: Action, left: int = 0) -> S:
    """Return the status that `action` leads to. `left` is the balance after a refund, in minor units.

    Raise as `check`.
    """
    check(order=order, action=action)
    statuses = TRANSITIONS[action][order.status]
    return statuses[0] if left else statuses[-1]
