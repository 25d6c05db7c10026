"""Compare an order as its shop has it with the order here, and say which changes to tell.

Shops post an order after every save, without a word about what changed. So its status, refunds and parcels
are compared with the order here. Each of them that is new here is told once; any other difference is
corrected without an e-mail. A post that changed nothing has no changes, and neither has one that arrives
after a later one. It has the whole order, so a lost one is made up for by the next.

What was told is known by rows alone: the order's times, the ids of its refunds, and the parcels. So a
repeat changes nothing. docs/guides/woocommerce.md has the table of who gets an e-mail.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.conf import settings

from events.consuming.envelope import Rejected
from orders.breakdown import as_stored
from orders.inbound.external import our_id
from orders.models import Order, Shipment
from orders.parcels import SHIPPABLE
from runtime.personal_data import ERASED_ADDRESS
from shop_connections.models import ShopConnection
from shop_connections.shop_order import OF_PARENT, ShopOrder, ShopParcel, ShopRefund, WholeOrder

S = Order.Status
#: One post makes at most so many changes. The rest is one correction.
MOST_CHANGES = 200
#: How far an order is. Within one second of the shop's clock it only goes on.
_PROGRESS = (S.PENDING, S.PAID, S.CONFIRMED, S.COMPLETED, S.PART_REFUNDED, S.CANCELLED, S.REFUNDED)
#: The statuses after which nothing of an earlier one is told.
_ENDED = frozenset({S.CANCELLED, S.REFUNDED})
#: An order that is completed as soon as it is paid, such as a download, sends no e-mail about the payment.
_AT_ONCE = dt.timedelta(seconds=2)
#: Undated changes in the first post of an older order are history.
_OLDEST = dt.timedelta(days=30)
#: How long a parcel waits for the post that says whether the customer is to hear of it.
NOTIFY_WITHIN = dt.timedelta(minutes=10)
#: How long after its first post the changes of an imported order belong to the import.
_IMPORT_LASTS = dt.timedelta(hours=1)


class Here(NamedTuple):
    """An order as it is here, under its lock."""

    order: Order
    shipments: Sequence[Shipment] = ()  # oldest first
    refunds: Mapping[str, int] = {}  # that were read before, deleted ones, too: amounts by the shop's ids


class Change(NamedTuple):
    """A change of the order, after which it has this status and refunded amount.

    `at` is when the shop made it, by our clock. Without `notify` it sends no e-mail.
    """

    event: str
    status: str
    refunded: int
    at: dt.datetime
    notify: bool = True
    parcel: ShopParcel | None = None
    is_corrected: bool = False  # the tracking number of the parcel
    reference: str = ""  # of the parcel
    details: Mapping[str, Any] = {}  # what its e-mail shows

    @property
    def is_new_parcel(self) -> bool:
        is_new = self.event == "order.shipped" and not self.is_corrected
        return is_new and self.parcel is not None and not self.parcel.is_returned

    @property
    def tells_of_parcel(self) -> bool:
        """Return whether its e-mail says that a parcel left."""
        return self.is_new_parcel and self.notify


class Differences(NamedTuple):
    """The changes in their order, and the order as the shop has it, complete."""

    order: WholeOrder
    changes: Sequence[Change] = ()
    doubts: Sequence[str] = ()
    left_out: str = ""  # why a post with another state changes nothing


def find_changes(
    here: Here | None,
    there: ShopOrder,
    *,
    shop: ShopConnection,
    received_at: dt.datetime,
    first_post_at: dt.datetime | None = None,
    most: int = MOST_CHANGES,
) -> Differences:
    """Return what makes the order here what the shop says. Raise `Rejected`. Nothing is read or written.

    Of more changes than `most`, the rest is one without an e-mail, after which the order is what the shop
    says. Its parcels follow with the next post. `first_post_at` is when the first post of the order came.
    """
    if there.parent and shop.parents.get("are") == "vendors":
        there = dataclasses.replace(there, silent=there.silent | OF_PARENT)
    order = _complete(there, here, received_at)
    goal = _find_goal(order, here, shop.statuses)
    if here is not None and is_late(order, here):
        is_other = goal is not None and (goal.status, goal.refunded) != _state_of(here)
        return Differences(order, left_out=LATE if is_other else "")
    if goal is None:
        return Differences(order)
    story = _Story(order, here, shop=shop, received_at=received_at, first_post_at=first_post_at)
    story.tell_all(goal)
    changes, doubts = story.changes, [*order.doubts, *story.left_to_shop]
    if len(changes) > most:
        told = f"All but the first {most} are" if most else "They are"
        doubts.append(
            f"changes: The post has {len(changes):,} of them. {told} stored as one, without e-mails."
        )
        changes = [*changes[:most], story.correction(goal)]
    return Differences(order, changes, doubts)


def due_at(
    here: Here | None, there: ShopOrder, *, source: str, received_at: dt.datetime
) -> dt.datetime | None:
    """Return when an order can be compared, if that may be later than now.

    Of a new parcel it may not be known yet whether the customer is to hear of it. The completion in the same
    save has one e-mail with it, so the whole order waits. A parcel may be older than the save that sent it.
    """
    stored = {shipment.reference for shipment in here.shipments} if here else set()
    times = [
        (max(parcel.shipped_at, there.saved_at or parcel.shipped_at) if parcel.shipped_at else received_at)
        + NOTIFY_WITHIN
        for parcel in there.parcels
        if parcel.notify is None and reference_of(parcel, source=source, order_id=there.id) not in stored
    ]
    return max(times, default=None)


class UnknownStatus(Rejected):
    """A post cannot be used until somebody says in the connection what its order's status means."""

    def __init__(self, status: str) -> None:
        super().__init__(
            f"its status {status!r} is not one of the platform's: say in the connection what it means"
        )
        self.status = status


#: The reason of a post that is done without an effect.
LATE = "left out: a later save of this order was stored before"


def reference_of(parcel: ShopParcel, *, source: str, order_id: str) -> str:
    """Return our name of a parcel. It stays after an erasure, which its number must not."""
    name = json.dumps(["parcel", source, order_id, parcel.id])
    return uuid.uuid5(uuid.NAMESPACE_URL, f"urn:orderpost:connection:{name}").hex[:12]


def _complete(there: ShopOrder, here: Here | None, received_at: dt.datetime) -> WholeOrder:
    """Return the order with what is stored in place of what was not read. Raise `Rejected`."""
    if here is not None:
        order = here.order
        stored: dict[str, Any] = {
            **{"number": order.reference, "currency": order.currency, "total": order.total_amount},
            **{"name": order.name, "created_at": order.created_at, "refunds": ()},
            **{"items": tuple(order.items), "charges": tuple(order.charges)},
        }
    elif there.currency is None:
        raise Rejected("its currency is missing")
    elif there.total is None:
        raise Rejected("its total is not an amount")
    else:
        dates = [there.paid_at, there.completed_at, there.saved_at]
        stored = {
            **{"number": there.id, "user_id": f"guest-{there.id}", "name": ""},
            "created_at": min(filter(None, dates), default=received_at),
            **{"items": (), "charges": (), "refunds": ()},
        }
    values = {field.name: getattr(there, field.name) for field in dataclasses.fields(there)}
    details = {**(here.order.details if here else {}), **there.details}
    whole: dict[str, Any] = {
        **{name: stored.get(name) if value is None else value for name, value in values.items()},
        "details": {name: value for name, value in details.items() if value},
        "has_all_refunds": there.has_all_refunds and there.refunds is not None,
    }
    return WholeOrder(**whole)


class _Goal:
    """The state that the order must get. `base` is its status without its refunds."""

    def __init__(self, order: WholeOrder, base: str, here: Here | None) -> None:
        total = order.total
        refunded = min(sum(refund.amount for refund in order.refunds), total)
        if here is not None and not order.has_all_refunds:
            refunded = min(max(refunded, here.order.refunded_amount), total)
        self.base, self.status, self.refunded = base, base, refunded
        if base == S.REFUNDED:
            self.refunded = total
        elif base != S.CANCELLED and refunded:
            self.status = S.REFUNDED if refunded == total else S.PART_REFUNDED


def _state_of(here: Here) -> tuple[str, int]:
    return here.order.status, here.order.refunded_amount


def is_late(there: ShopOrder, here: Here) -> bool:
    """Return whether a later state of the order is stored."""
    newest = here.order.reported_at
    return newest is not None and there.as_of is not None and there.as_of < newest


def _find_goal(order: WholeOrder, here: Here | None, statuses: Mapping[str, str]) -> _Goal | None:
    """Return what the order must become, or None if nothing of it is news."""
    chosen = statuses.get(order.shop_status)
    base = order.status if chosen is None else chosen
    if base is None:
        raise UnknownStatus(order.shop_status)
    if here is None and chosen is None and order.is_at_checkout:
        base = ""
    if base == "":
        base = _base_of(here.order) if here is not None else ""
    if base == "":
        return None
    is_paid = order.paid_at is not None
    if base == S.PART_REFUNDED:
        base = S.PAID
    if base == S.PENDING and is_paid and not chosen and not order.is_at_checkout:
        base = S.PAID
    if base == S.PAID and not is_paid and not (here is not None and here.order.paid_at is not None):
        base = S.CONFIRMED  # cash on delivery: the shop gets the order ready before it is paid
    if base == S.CANCELLED and here is None and not is_paid and order.may_be_abandoned:
        return None
    goal = _Goal(order, base, here)
    if here is not None and order.as_of is not None and here.order.reported_at == order.as_of:
        status, refunded = _state_of(here)
        has_gone_back = _PROGRESS.index(S(goal.status)) < _PROGRESS.index(S(status))
        if has_gone_back or goal.refunded < refunded:
            return None
    return goal


def _tracking(parcel: ShopParcel | Shipment) -> str:
    """Return by what a parcel can be followed. Some shops have only a link."""
    return parcel.tracking_number or parcel.tracking_url


def _base_of(order: Order) -> str:
    if order.status == S.PART_REFUNDED:
        return S.COMPLETED if order.completed_at is not None else S.PAID
    return order.status


class _Story:
    """Tells what happened to an order since it became what it is here, in an order in which it can have."""

    def __init__(
        self,
        order: WholeOrder,
        here: Here | None,
        *,
        shop: ShopConnection,
        received_at: dt.datetime,
        first_post_at: dt.datetime | None,
    ) -> None:
        self.order, self.here, self.source, self.received_at = order, here, shop.source, received_at
        self.total = order.total
        self.status, refunded = _state_of(here) if here else ("", 0)
        self.refunded = min(refunded, self.total)
        self.changes: list[Change] = []
        self.left_on: Mapping[str, str] = shop.left_on or {}
        self.left_to_shop: list[str] = []  # a line for each e-mail that the shop sends in place of ours
        self.is_all_back = False  # all was refunded in the save that paid, and only the refund is told
        self.is_first = here is None or here.order.reported_at is None
        # An undated change of a known order is as old as its save. In a first post, also of an order that was
        # imported, it may be as old as the order's newest date. Otherwise a shop that saves its old orders
        # would mail everybody.
        dates = filter(None, [order.created_at, order.paid_at, order.completed_at])
        saved_at = order.saved_at or received_at
        self.changed_at = max(dates, default=saved_at) if self.is_first else saved_at
        self.is_of_import = order.is_import and (
            first_post_at is None or received_at - first_post_at < _IMPORT_LASTS
        )
        live_at = shop.live_at if shop.state == shop.State.LIVE else None
        self.live_at = live_at if live_at is not None and live_at <= received_at else None

    def tell_all(self, goal: _Goal) -> None:
        """Tell every change, and correct what is left."""
        if self._has_other_currency():
            self._correct(goal)  # an e-mail would show sums of two currencies
            return
        has_ended = self.here is not None and goal.status == self.here.order.status in _ENDED
        if not has_ended:
            self._tell_beginning(goal)
        goes_on = self.status in _ENDED and goal.status not in _ENDED
        self._tell_parcels(goal)
        if not has_ended and self._owes_completion(goal):
            self._tell_completion(goal)
        if goal.base == S.CANCELLED and self.status != S.CANCELLED:
            self._tell("order.cancelled", S.CANCELLED, details={"was_paid": self._was_paid()})
        self._tell_refunds(goal)
        is_other = (self.status, self.refunded) != (goal.status, goal.refunded)
        if is_other or (not self.changes and self._has_other_details()):
            self._correct(goal)
        if goes_on:
            self._tell_parcels(goal)

    def _has_other_currency(self) -> bool:
        """Return whether the order has got another currency other than by its first payment."""
        if self.here is None or self.here.order.currency == self.order.currency:
            return False
        order = self.here.order
        return order.paid_at is not None or order.refunded_amount > 0 or self.order.paid_at is None

    def _tell_beginning(self, goal: _Goal) -> None:
        """Tell of the order's first e-mails: that it is here, paid, or confirmed without a payment."""
        order, here = self.order, self.here
        if here is None and goal.status == S.PENDING:
            self._tell("order.placed", S.PENDING, at=order.created_at)
        told = (S.PAID, S.COMPLETED, S.PART_REFUNDED, S.REFUNDED)
        is_told = here is not None and (here.order.paid_at is not None or here.order.status in told)
        if order.paid_at is not None and not is_told and goal.base != S.PENDING and not self.refunded:
            self.is_all_back = goal.status == S.REFUNDED and self.total > 0
            if not self.is_all_back and not self._is_completed_at_once(goal):
                self._tell_payment(goal)
        if goal.status == S.CONFIRMED and self.status in ("", S.PENDING, S.PAID) and not self.refunded:
            self._tell("order.confirmed", S.CONFIRMED)

    def _is_completed_at_once(self, goal: _Goal) -> bool:
        paid_at, completed_at = self.order.paid_at, self.order.completed_at
        if paid_at is None or completed_at is None or completed_at - paid_at > _AT_ONCE:
            return False
        has_email = self._is_sent("order.completed", completed_at, is_dated=True) and not self._is_silenced()
        return self._owes_completion(goal) and has_email

    def _tell_payment(self, goal: _Goal) -> None:
        """Tell of the payment. Its e-mail, if it has one, also shows the refunds of the same save."""
        at = self.order.paid_at
        assert at is not None
        status, refunded = S.PAID, 0
        if goal.status == S.PART_REFUNDED and self._is_sent("order.paid", at, is_dated=True):
            status, refunded = S.PART_REFUNDED, goal.refunded
        self._tell("order.paid", status, at=at, refunded=refunded)

    def _tell_completion(self, goal: _Goal) -> None:
        """Tell of the completion and of the parcels that left in its save, by one e-mail."""
        at = self.order.completed_at
        refunded = min(self.refunded, goal.refunded)  # some of it may have been taken back
        status = S.PART_REFUNDED if 0 < refunded < self.total else S.COMPLETED
        tracked = {parcel.tracking_url for parcel in self.order.parcels if parcel.tracking_url}
        details: dict[str, Any] = {"tracking_url": tracked.pop()} if len(tracked) == 1 else {}
        left = [place for place, change in enumerate(self.changes) if change.tells_of_parcel]
        if self._is_silenced():
            is_news = self._is_news(at or self.changed_at, is_dated=at is not None)
            if is_news and "order.completed" not in self.order.silent:
                self._add(Change("order.completed", status, refunded, at or self.changed_at, notify=False))
            return
        if self._is_sent("order.completed", at or self.changed_at, is_dated=at is not None):
            parcels = self._take_parcels(left)
            if details and len(parcels) == 1:
                parcels = [parcels[0] | {"tracking_url": ""}]  # the link has a button
            details["parcels"] = parcels
        elif "order.shipped" in settings.NOTIFY_ON and len(left) > 1:
            others = self._take_parcels(left[:-1])
            self.changes[left[-1]] = self.changes[left[-1]]._replace(details={"parcels": others})
        self._tell("order.completed", status, at=at, refunded=refunded, details=details)

    def _is_silenced(self) -> bool:
        """Return whether the shop wants the customer not to hear of the parcels with which it completes."""
        shipments = self._match_parcels()
        wishes = [
            parcel.notify
            for parcel in self.order.parcels
            if not (parcel.is_delivered or parcel.is_returned)
            and ((shipment := shipments.get(parcel.id)) is None or shipment.shipped_at is None)
        ]
        return bool(wishes) and all(wish is False for wish in wishes)

    def _take_parcels(self, places: Sequence[int]) -> list[dict[str, str]]:
        """Have changes send no e-mail of their own, and return the tracking of their parcels."""
        parcels = []
        for place in places:
            change = self.changes[place]
            self.changes[place] = change._replace(notify=False)
            assert change.parcel is not None
            names = ("carrier", "tracking_number", "tracking_url")
            parcels.append({name: getattr(change.parcel, name) for name in names})
        return parcels

    def _owes_completion(self, goal: _Goal) -> bool:
        here, order = self.here, self.order
        if here is not None and (here.order.completed_at is not None or here.order.status == S.COMPLETED):
            return False
        is_past = goal.base in _ENDED and order.completed_at is not None
        refunded = min(self.refunded, goal.refunded)
        can_be = refunded < self.total or not refunded
        return (goal.base == S.COMPLETED or is_past) and can_be

    def _tell_parcels(self, goal: _Goal) -> None:
        """Tell of the parcels that left, were corrected or delivered, if the order's status allows it."""
        status = self.status if self.status in SHIPPABLE else self._status_of_parcels(goal)
        is_part = 0 < self.refunded < self.total
        if status not in SHIPPABLE or self.status in _ENDED or is_part != (status == S.PART_REFUNDED):
            return
        shipments = self._match_parcels()
        for parcel in self.order.parcels:
            shipment = shipments.get(parcel.id)
            if shipment is None or shipment.shipped_at is None:
                self._tell_parcel(parcel, status, reference=shipment.reference if shipment else None)
                continue
            before, now, is_erased = _tracking(shipment), _tracking(parcel), self._is_erased()
            is_back = shipment.returned_at is not None
            if parcel.is_delivered and shipment.delivered_at is None and not is_back:
                self._tell_parcel(parcel, status, reference=shipment.reference)
            elif not is_erased and now and before != now and not is_back:
                self._tell_parcel(parcel, status, reference=shipment.reference, is_corrected=True)
            elif not is_back and (parcel.is_returned or (not is_erased and self._differs(parcel, shipment))):
                self._tell_parcel(parcel, status, reference=shipment.reference, notify=False)

    def _status_of_parcels(self, goal: _Goal) -> str:
        """Return the status with which parcels left of an order that no longer has it."""
        if goal.base != S.REFUNDED:
            return goal.base
        return S.COMPLETED if self._owes_completion(goal) else S.PAID

    def _match_parcels(self) -> Mapping[str, Shipment]:
        """Return what is stored of each parcel, by its id in the shop.

        A parcel that was deleted and entered again has another id and the same number. If its number was
        wrong, it has only its place.
        """
        stored = list(self.here.shipments) if self.here else []
        parcels, matched = self.order.parcels, dict[str, Shipment]()
        references = {self._reference_of(parcel): parcel for parcel in parcels}
        for shipment in stored:
            if parcel := references.get(shipment.reference or ""):
                matched[parcel.id] = shipment
        if self.order.parcels_keep_ids:
            return matched
        numbers = {shipment.tracking_number: shipment for shipment in stored if shipment.tracking_number}
        for place, parcel in enumerate(parcels):
            if parcel.id in matched:
                continue
            at_place = stored[place] if place < len(stored) and len(stored) == len(parcels) else None
            same = numbers.get(parcel.tracking_number, at_place)
            if same is not None and not any(same is other for other in matched.values()):
                matched[parcel.id] = same
        return matched

    def _differs(self, parcel: ShopParcel, shipment: Shipment) -> bool:
        """Return whether the shop corrected a parcel, rather than took away what it said of it."""
        lines = tuple((line["item"], line["quantity"]) for line in shipment.lines)
        new = (
            parcel.carrier or shipment.carrier,
            parcel.tracking_url or shipment.tracking_url,
            self._stored_lines(parcel) or lines,
        )
        return new != (shipment.carrier, shipment.tracking_url, lines)

    def _stored_lines(self, parcel: ShopParcel) -> tuple[tuple[int, int], ...]:
        lines = [{"item": item, "quantity": quantity} for item, quantity in parcel.lines]
        moved = as_stored(self.order.items, self.order.charges).move_lines(lines)
        return tuple((line["item"], line["quantity"]) for line in moved)

    def _tell_parcel(
        self,
        parcel: ShopParcel,
        status: str,
        *,
        reference: str | None,
        is_corrected: bool = False,
        notify: bool = True,
    ) -> None:
        at, left_at = self.changed_at, parcel.shipped_at
        if self.is_first and left_at is not None:
            at = self._time_of_old_parcel(left_at)
        event = "order.shipped"
        if parcel.is_delivered and not is_corrected:
            event = "order.delivered"
        is_told = parcel.notify is not False and self._is_told(event, at, is_dated=left_at is not None)
        notify = notify and is_told
        self._add(
            Change(
                event,
                status,
                self.refunded,
                at,
                notify,
                parcel=parcel,
                is_corrected=is_corrected,
                reference=reference or self._reference_of(parcel),
            )
        )

    def _time_of_old_parcel(self, left_at: dt.datetime) -> dt.datetime:
        """Return when a parcel of a first post left. Many plug-ins know only the day."""
        if self.live_at is None:
            return max(self.changed_at, left_at)
        begins_at = max(self.live_at, self.order.created_at)
        is_since = self.order.created_at >= self.live_at or left_at.date() >= self.live_at.date()
        return max(left_at, begins_at) if is_since else left_at

    def _reference_of(self, parcel: ShopParcel) -> str:
        return reference_of(parcel, source=self.source, order_id=self.order.id)

    def _tell_refunds(self, goal: _Goal) -> None:
        """Tell of the refunds that were not told, oldest first, if more is refunded than here.

        If less is refunded, some were deleted, maybe without a post, and one that replaced them may be new.
        """
        told = self.here.refunds if self.here else {}
        refunds = self.order.refunds
        ids = {refund.id for refund in refunds}
        has_lost_some = self.order.has_all_refunds and any(id not in ids for id in told)
        is_free = not self.total and goal.base == S.REFUNDED != self.status
        grows = goal.refunded > self.refunded or is_free
        if not grows and not has_lost_some:
            return
        new = [refund for refund in refunds if refund.id not in told]
        if self.is_first and self.here is not None:
            new = self._newest(new, goal.refunded - self.refunded)  # others told of some, without these ids
        rest = goal.refunded - sum(refund.amount for refund in refunds)
        if grows and (rest > 0 or is_free):
            new.append(ShopRefund("", rest))  # a person chose the status, without a refund
        if self.is_all_back:
            new = [ShopRefund("", goal.refunded)]
        refunded = max(0, goal.refunded - sum(refund.amount for refund in new))
        for refund in new:
            refunded = min(refunded + refund.amount, goal.refunded)
            is_all = refunded == self.total
            status = S.CANCELLED if goal.status == S.CANCELLED else S.REFUNDED if is_all else S.PART_REFUNDED
            event = "order.refunded" if is_all else "order.part_refunded"
            self._tell(event, status, refunded=refunded, details={"amount": min(refund.amount, refunded)})

    def _newest(self, refunds: Sequence[ShopRefund], amount: int) -> list[ShopRefund]:
        """Return the newest refunds that make up an amount."""
        chosen = list[ShopRefund]()
        for refund in reversed(refunds):
            if amount <= 0:
                break
            chosen.insert(0, refund)
            amount -= refund.amount
        return chosen

    def _is_news(self, at: dt.datetime, *, is_dated: bool) -> bool:
        """Return whether a change at this time may send an e-mail, rather than being history.

        Of a known order, its time and the connection decide whether it is sent.
        """
        if self.is_of_import:
            return False
        if not self.is_first:
            return True
        created_at = self.order.created_at
        is_new = self.live_at is None or created_at >= self.live_at
        if is_new and self.received_at - created_at <= _OLDEST:
            return True
        return is_dated and self.live_at is not None and self.live_at <= at <= created_at + _OLDEST

    def _is_told(self, event: str, at: dt.datetime, *, is_dated: bool) -> bool:
        """Return whether we tell of a change. If the shop does, add the line that says so."""
        if event in self.order.silent or not self._is_news(at, is_dated=is_dated):
            return False
        if (own := self.left_on.get(event)) is None:
            return True
        if event in settings.NOTIFY_ON and self.live_at is not None and at >= self.live_at:
            self.left_to_shop.append(f"{event}: The shop sends its own e-mail, {own}, so ours is not sent.")
        return False

    def _is_sent(self, event: str, at: dt.datetime, *, is_dated: bool) -> bool:
        is_silent = event in self.order.silent or event in self.left_on
        is_chosen = event in settings.NOTIFY_ON and not is_silent
        is_of_shop = self.live_at is not None and at < self.live_at
        return is_chosen and not is_of_shop and self._is_news(at, is_dated=is_dated)

    def _tell(
        self,
        event: str,
        status: str,
        *,
        at: dt.datetime | None = None,
        refunded: int | None = None,
        details: Mapping[str, Any] = {},
    ) -> None:
        """Add a change, at a time of the shop or undated. Leave history to the correction."""
        is_dated, at = at is not None, at or self.changed_at
        if self._is_told(event, at, is_dated=is_dated):
            refunded = self.refunded if refunded is None else refunded
            self._add(Change(event, status, refunded, at, details=details))

    def _add(self, change: Change) -> None:
        self.changes.append(change)
        self.status, self.refunded = change.status, change.refunded

    def _correct(self, goal: _Goal) -> None:
        self._add(self.correction(goal))

    def correction(self, goal: _Goal) -> Change:
        """Return a change without an e-mail, after which the order is what the shop says."""
        name = "placed" if goal.status == S.PENDING else goal.status
        return Change(f"order.{name}", goal.status, goal.refunded, self.changed_at, notify=False)

    def _was_paid(self) -> bool:
        return self.order.paid_at is not None or (
            self.here is not None and self.here.order.paid_at is not None
        )

    def _is_erased(self) -> bool:
        return self.here is not None and self.here.order.email == ERASED_ADDRESS

    def _has_other_details(self) -> bool:
        """Return whether somebody edited the order in the shop.

        An address that no provider takes says nothing: a person here may have given the order another one.
        """
        if self.here is None:
            return True
        order, stored = self.order, self.here.order
        if (stored.total_amount, stored.reference) != (order.total, order.number):
            return True
        is_other_user = order.user_id is not None and stored.user_id != our_id(
            source=self.source, id=order.user_id
        )
        is_untold = (order.paid_at and not stored.paid_at) or (order.completed_at and not stored.completed_at)
        if is_other_user or (is_untold and stored.status != S.PENDING):
            return True
        if self._is_erased():
            return False
        parts = as_stored(order.items, order.charges)
        here = (stored.name, list(stored.items), list(stored.charges), stored.details)
        there = (order.name, parts.items, parts.charges, order.details)
        is_other_language = bool(order.locale) and order.locale != stored.locale
        return (bool(order.email) and order.email != stored.email) or here != there or is_other_language
