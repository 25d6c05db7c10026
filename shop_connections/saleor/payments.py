"""Read when an order of Saleor was paid, and its refunds: by its transactions, and by the older payments."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from shop_connections.saleor.values import Json, member, members, minor, text, time
from shop_connections.shop_order import ShopRefund

_CHARGED, _REFUNDED = frozenset({"CAPTURE", "EXTERNAL"}), frozenset({"REFUND"})
_PAID = frozenset({"FULL", "OVERCHARGED"})


class Payment(NamedTuple):
    """Money that came or went back."""

    id: str
    at: dt.datetime | None
    amount: int


def read_paid_at(order: Json, currency: str, total: int | None) -> dt.datetime | None:
    """Return the time of the last charge of an order that is or was paid in full, or None."""
    charges = list(_payments(order, currency, "CHARGE", _CHARGED))
    charged = sum(charge.amount for charge in charges)
    created_at = time(order.get("created"))
    if total == 0:
        return created_at
    # A granted refund makes an order that nobody paid FULL, too.
    has_paid = bool(charged) or bool(minor(member(order, "totalCharged"), currency))
    is_paid = text(order.get("chargeStatus")) in _PAID or (total is not None and charged >= total)
    if not (has_paid and is_paid):
        return None
    times = [charge.at for charge in charges if charge.at is not None]
    # The payment's app may give a charge an earlier time.
    return max([*times, *filter(None, [created_at])], default=None)


def read_refunds(order: Json, currency: str) -> tuple[ShopRefund, ...] | None:
    """Return the refunds that succeeded, oldest first, without those that were taken back."""
    if not currency or not isinstance(order.get("transactions"), list):
        return None
    refunds = list(_payments(order, currency, "REFUND", _REFUNDED))
    refunds.sort(key=lambda refund: (refund.at is None, refund.at, refund.id))
    back = sum(reversal.amount for reversal in _reversals(order, currency))
    kept = list[ShopRefund]()
    for refund in reversed(refunds):
        amount = max(0, refund.amount - back)
        back -= refund.amount - amount
        if amount:
            kept.insert(0, ShopRefund(refund.id, amount))
    return tuple(kept)


def last_payment_at(order: Json) -> dt.datetime | None:
    """Return when money last came or went back, or was tried to."""
    events = (time(event.get("createdAt")) for event in _events(order))
    older = (time(entry.get("created")) for entry in _older(order))
    return max(filter(None, [*events, *older]), default=None)


def _payments(order: Json, currency: str, kind: str, older: frozenset[str]) -> Iterator[Payment]:
    for transaction in members(order, "transactions"):
        for event in _successes(transaction, kind):
            yield from _payment(event, currency, event.get("createdAt"))
    for entry in _older(order):
        if text(entry.get("kind")) in older and entry.get("isSuccess") is True:
            yield from _payment(entry, currency, entry.get("created"))


def _payment(entry: Json, currency: str, at: object) -> Iterator[Payment]:
    amount = minor(member(entry, "amount"), currency)
    if amount and amount > 0:
        yield Payment(text(entry.get("id")), time(at), amount)


def _successes(transaction: Json, kind: str) -> Iterator[Json]:
    """Yield the events of successes, of each reference the last one, unless a failure is newer."""
    of_reference: dict[str, dict[str, Json]] = defaultdict(dict)
    events = sorted(members(transaction, "events"), key=lambda event: text(event.get("createdAt")))
    for event in events:
        word, reference = event.get("type"), text(event.get("pspReference"))
        if not reference and word == f"{kind}_SUCCESS":
            yield event
        elif word in (f"{kind}_SUCCESS", f"{kind}_FAILURE"):
            of_reference[reference][word] = event
    for ends in of_reference.values():
        success, failure = ends.get(f"{kind}_SUCCESS"), ends.get(f"{kind}_FAILURE")
        if success and not (failure and text(failure.get("createdAt")) >= text(success.get("createdAt"))):
            yield success


def _reversals(order: Json, currency: str) -> Iterator[Payment]:
    for event in _events(order):
        if event.get("type") == "REFUND_REVERSE":
            yield from _payment(event, currency, event.get("createdAt"))


def _events(order: Json) -> Iterator[Json]:
    for transaction in members(order, "transactions"):
        yield from members(transaction, "events")


def _older(order: Json) -> Iterator[Json]:
    for payment in members(order, "payments"):
        yield from members(payment, "transactions")
