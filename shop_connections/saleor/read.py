"""Read an order of Saleor: an event's body, or what the client read by GraphQL.

An event's `issuedAt` is when Saleor began to read the order for its body, which may be some time after the
change that caused it.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import Any

from events.consuming.envelope import DEEPEST, Rejected
from notifications.content.rendering import is_locale, nearest_locale
from orders.bodies import longest
from orders.fields import MAX_AMOUNT
from orders.models import Order
from runtime.addresses import NotAnAddress, read_address
from shop_connections.currency import read_currency
from shop_connections.saleor.charges import read_charges, read_lines
from shop_connections.saleor.details import read_details, read_name
from shop_connections.saleor.parcels import last_fulfilment_at, read_parcels
from shop_connections.saleor.payments import last_payment_at, read_paid_at, read_refunds
from shop_connections.saleor.query import EVENTS
from shop_connections.saleor.values import Json, cut, decimal, member, members, minor, text, time, whole
from shop_connections.shop_order import OF_PARENT, ShopHead, ShopOrder
from web.api.bodies import NotStrict, parse_json

S = Order.Status
#: Our status for each of Saleor's; "" leaves the order unchanged. Those that have left the shop whole are
#: completed, see `_status`. A connection may override it.
STATUSES: Mapping[str, str] = {
    "DRAFT": "",
    "UNCONFIRMED": S.PENDING,
    "UNFULFILLED": S.PAID,
    "PARTIALLY_FULFILLED": S.PAID,
    "FULFILLED": S.PAID,
    "PARTIALLY_RETURNED": S.PAID,
    "RETURNED": "",
    "CANCELED": S.CANCELLED,
    "EXPIRED": "",
}
_SENT = frozenset({"FULFILLED", "PARTIALLY_RETURNED", "RETURNED"})
#: A replacement is told by its parcels alone.
OF_REPLACEMENT = OF_PARENT | {"order.refunded", "order.part_refunded"}
#: The members that `read_again` keeps of an event.
EVENT = ("__typename", "issuedAt", "notifyCustomer", "fulfillment")
#: When the client read an order, by the shop's clock.
READ_AT = "readAt"
_ID, _STATUS = re.compile(r"[!-~]{1,100}"), re.compile(r"[A-Z][A-Z_]{0,49}")


def read_head(body: bytes) -> ShopHead | None:
    """Return which order a body is about, or None if it is about none. Raise `Rejected`."""
    return find_head(parse(body))


def find_head(document: Json) -> ShopHead | None:
    """Return which order a parsed body is about, or None if it is about none. Raise `Rejected`."""
    if text(document.get("__typename")) not in EVENTS and READ_AT not in document:
        return None
    order = member(document, "order")
    if document.get("errors") or not order:
        order = member(document, "about") or order
        return ShopHead(_id(order), channel=_channel(order), must_be_read=True)
    return ShopHead(_id(order), channel=_channel(order), modified_at=_modified_at(document, order))


def read_order(body: bytes, *, locale: str) -> ShopOrder | None:
    """Return a body's order, or None if the body is about none. Raise `Rejected`.

    Addresses have the names of countries in the order's language, or in that of `locale`.
    """
    document = parse(body)
    head = find_head(document)
    return None if head is None else _OrderReader(document, locale).read(head)


def read_status(word: str) -> str:
    """Return a status in the form in which orders have it, or "" if it is none.

    >>> read_status(" Partially fulfilled")
    'PARTIALLY_FULFILLED'
    """
    status = re.sub(r"[\s-]+", "_", word.strip().upper())
    return status if _STATUS.fullmatch(status) else ""


class _OrderReader:
    def __init__(self, document: Json, locale: str) -> None:
        self.document, self.order = document, member(document, "order")
        self.doubts: list[str] = []
        self.language = self._language()
        self.locale = self.language or locale
        self.currency = self._currency()

    def read(self, head: ShopHead) -> ShopOrder:
        order, currency = self.order, self.currency
        total, lines = self._total(), read_lines(order, currency)
        completed_at = self._completed_at()
        status, word = self._status(completed_at)
        has_lines = isinstance(order.get("lines"), list) and bool(currency)
        return ShopOrder(
            id=head.id,
            status=status,
            shop_status=word,
            number=cut(text(order.get("number")) or head.id, longest("reference")),
            currency=currency or None,
            total=total,
            created_at=self._time("created"),
            modified_at=head.modified_at,
            read_at=time(self.document.get(READ_AT)),
            paid_at=read_paid_at(order, currency, total),
            completed_at=completed_at,
            user_id=self._user_id(head.id),
            email=self._email(),
            name=None if (name := read_name(order)) is None else cut(name, longest("name")),
            locale=self.language,
            items=tuple(line.item for line in lines) if has_lines else None,
            charges=read_charges(order, currency, lines=lines, total=total) if has_lines else None,
            details=read_details(order, locale=self.locale),
            refunds=read_refunds(order, currency),
            has_all_refunds=isinstance(order.get("payments"), list),
            parcels=read_parcels(
                self.document, order, places={line.id: place for place, line in enumerate(lines)}
            ),
            parcels_keep_ids=True,
            is_import=order.get("origin") == "BULK_CREATE",
            silent=OF_REPLACEMENT if order.get("origin") == "REISSUE" else frozenset(),
            doubts=tuple(self.doubts),
        )

    def doubt(self, member: str, fault: str) -> None:
        self.doubts.append(f"{member}: {fault}")

    def _status(self, completed_at: dt.datetime | None) -> tuple[str | None, str]:
        """Return our status, None if only the connection knows it, and the shop's word."""
        status = self.order.get("status")
        word = read_status(status) if isinstance(status, str) else ""
        if not word:
            self.doubt("status", "It is not a word. The order keeps its status.")
            return "", ""
        return (S.COMPLETED if completed_at is not None else STATUSES.get(word)), word

    def _completed_at(self) -> dt.datetime | None:
        """Return when the last parcel of an order left of which nothing is left to send, or None.

        Lines that were refunded before they left count as fulfilled in Saleor.
        """
        lines = members(self.order, "lines")
        is_whole = all(whole(line.get("quantityFulfilled")) >= whole(line.get("quantity")) for line in lines)
        if text(self.order.get("status")) not in _SENT or not is_whole:
            return None
        sent = (each for each in members(self.order, "fulfillments") if each.get("status") == "FULFILLED")
        return max(filter(None, (time(each.get("created")) for each in sent)), default=None)

    def _currency(self) -> str:
        sums = member(self.order, "total")
        currency = sums.get("currency")
        return (
            ""
            if currency is None
            else read_currency(currency, total=decimal(member(sums, "gross").get("amount")))
        )

    def _total(self) -> int | None:
        total = minor(member(member(self.order, "total"), "gross"), self.currency)
        if total is None:
            self.doubt("total", "It is not an amount. The order keeps its total.")
            return None
        if total < 0:
            self.doubt("total", f"The shop says {total} minor units of {self.currency}. 0 is stored.")
        return min(max(0, total), MAX_AMOUNT)

    def _language(self) -> str:
        word = text(self.order.get("languageCodeEnum")).replace("_", "-").lower()
        return word if is_locale(word) else nearest_locale(word) or ""

    def _time(self, name: str) -> dt.datetime | None:
        if (at := time(self.order.get(name))) is None:
            self.doubt(name, "It is not a time.")
        return at

    def _user_id(self, id: str) -> str | None:
        if "user" not in self.order:
            return None
        return text(member(self.order, "user").get("id"))[:100] or f"guest-{id}"

    def _email(self) -> str:
        value = self.order.get("userEmail")
        if not isinstance(value, str) or not value.strip():
            return ""
        try:
            return read_address(value.strip())
        except NotAnAddress:
            self.doubt("email", "The address is none that a provider takes.")
            return ""


def _modified_at(document: Json, order: Json) -> dt.datetime | None:
    """Return when the shop saved the order, by its clock.

    `updatedAt` leaves out a second parcel and a transaction's event.
    """
    if READ_AT not in document:
        return time(document.get("issuedAt"))
    saves = [time(order.get("updatedAt")), last_fulfilment_at(order), last_payment_at(order)]
    return max(filter(None, saves), default=None)


def _id(order: Json) -> str:
    id = order.get("id")
    if not isinstance(id, str) or not _ID.fullmatch(id):
        raise Rejected("its order has no id")
    return id


def _channel(order: Json) -> str:
    return text(member(order, "channel").get("slug"))


def parse(body: bytes) -> Json:
    """Return a body as an object. Raise `Rejected`."""
    try:
        document: Any = parse_json(body, deepest=DEEPEST)
    except NotStrict as error:
        raise Rejected(f"it {error.reason}") from error
    if not isinstance(document, dict):
        raise Rejected("it is not a JSON object")
    return document
