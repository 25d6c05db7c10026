"""Read an order of WooCommerce: the body of a webhook, or a member of the orders API's list.

WooCommerce writes a post when it sends it, so a post has the order as it is then, whatever caused it. Odd
values of plug-ins are read as well as they can be. Each part that cannot be read is a doubt, and none.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import re
import unicodedata
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from events.consuming.envelope import DEEPEST, Rejected
from notifications.content.rendering import is_locale, nearest_locale
from orders.bodies import ItemBody, longest
from orders.breakdown import MAX_ITEMS, Item
from orders.fields import MAX_AMOUNT
from orders.models import Order
from runtime.addresses import NotAnAddress, read_address
from shop_connections.currency import read_currency
from shop_connections.shop_order import OF_PARENT, ShopHead, ShopOrder, ShopRefund
from shop_connections.woocommerce.charges import line_amount, read_charges
from shop_connections.woocommerce.details import read_details
from shop_connections.woocommerce.parcels import read_meta, read_parcels
from shop_connections.woocommerce.values import (
    cut,
    decimal,
    html_text,
    listed,
    members,
    minor,
    odd_amount,
    scaled,
    text,
    time,
    whole,
)
from web.api.bodies import NotStrict, parse_json

S = Order.Status
#: Our status for each of WooCommerce's own; "" leaves the order unchanged. A connection may override it.
STATUSES: Mapping[str, str] = {
    "pending": S.PENDING,
    "failed": S.PENDING,
    "on-hold": S.PENDING,
    "processing": S.PAID,
    "ready-for-pickup": S.PAID,
    "completed": S.COMPLETED,
    "cancelled": S.CANCELLED,
    "refunded": S.REFUNDED,
    "trash": "",
    "checkout-draft": "",
    "auto-draft": "",
    "draft": "",
    "new": "",
}
#: The customer is still at the checkout. WooCommerce sends no e-mail, and cancels such orders by the hour.
AT_CHECKOUT = frozenset({"pending", "failed"})
#: Ways to pay after the order, whose orders are never at the checkout.
AFTERWARDS = frozenset({"bacs", "cheque", "cod"})
#: Marketplaces that make an order for each vendor, below the order that the customer placed. Dokan also
#: calls a vendor's own subscription so, which is below none.
MARKETPLACES = frozenset({"dokan", "mvx_vendor_order", "yith_wcmv_vendor_suborder"})
#: The keys under which plug-ins store an order's language.
_LANGUAGES = ("wpml_language", "lang", "trp_language")
_TIMES = ("date_created_gmt", "date_modified_gmt", "date_paid_gmt", "date_completed_gmt")
_LONGEST_STATUS = 50
_CODE = re.compile(r"[a-z0-9_]{1,80}")
_MOST_ITEMS_OF_LINE = 10**6


def read_order(body: bytes, *, locale: str) -> ShopOrder | None:
    """Return a body's order, or None if the body is about none. Raise `Rejected`.

    Addresses have the names of countries in the order's language, or in that of `locale`.
    """
    document = _parse(body)
    return _Reading(document, locale).read() if _is_order(document) else None


def read_head(body: bytes) -> ShopHead | None:
    """Return which order a body is about, or None if it is about none. Raise `Rejected`."""
    document = _parse(body)
    if not _is_order(document):
        return None
    key, modified_at = text(document.get("order_key")), None
    with contextlib.suppress(ValueError):
        modified_at = time(document.get("date_modified_gmt"))
    # The key opens the customer's page of the order.
    hidden = hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:32] if key else ""
    return ShopHead(_id(document), hidden, _address(document), modified_at)


#: The part of an API link behind the shop's address, with and without permalinks.
_API = re.compile(r"/(?:index\.php/?)?(?:wp-json/|\?rest_route=).*", re.DOTALL)


def _address(document: Mapping[str, Any]) -> str:
    """Return the address of the shop to whose API the order's own link leads, or ""."""
    links = document.get("_links")
    own = members(links, "self") if isinstance(links, dict) else ()
    address, count = _API.subn("", text(own[0].get("href"))[:1000] if own else "")
    return address.rstrip("/")[:500] if count and address.startswith(("https://", "http://")) else ""


def read_status(word: str) -> str:
    """Return a status in the form in which orders have it, or "" if it is none.

    >>> read_status(" Awaiting shipment"), read_status("WC-PACKED"), read_status("wc-Geprüft")
    ('awaiting-shipment', 'packed', 'geprüft')
    """
    written = unicodedata.normalize("NFC", word.strip().lower())
    status = re.sub(r"\s+", "-", written).removeprefix("wc-")
    is_word = status.isprintable() and "@" not in status  # an address is nobody's status
    return status if is_word and len(status) <= _LONGEST_STATUS else ""


def _parse(body: bytes) -> Mapping[str, Any]:
    """Return the body as an object. Only the members that are read need to be strict JSON.

    The meta of a plug-in may have anything, such as a NUL.
    """
    try:
        document = parse_json(body, deepest=DEEPEST)
    except NotStrict as error:
        raise Rejected(f"it {error.reason}") from error
    if not isinstance(document, dict):
        raise Rejected("it is not a JSON object")
    return document


def _is_order(document: Mapping[str, Any]) -> bool:
    """Return whether a body has an order. Raise `Rejected` if a setting of the shop must change.

    A deleted order's body has only its id. A product, a customer or a coupon has no line items, and a
    subscription has a period.
    """
    if isinstance(document.get("order"), dict):
        raise Rejected("it has the form of the Legacy API: choose WP REST API Integration v3 in the webhook")
    if "code" in document and "message" in document:  # get_endpoint_data of an order that cannot be read
        code = document["code"] if isinstance(document["code"], str) else ""
        if code.endswith("invalid_id"):  # it was deleted before it was sent
            return False
        named = f" ({code})" if _CODE.fullmatch(code) else ""
        raise Rejected(
            f"WooCommerce sent an error instead of the order{named}: the user of the webhook must be allowed"
            " to see orders"
        )
    return "line_items" in document and "status" in document and "billing_period" not in document


class _Reading:
    """Reads the members of an order, and notes what is odd. `locale` is the shop's."""

    def __init__(self, document: Mapping[str, Any], locale: str) -> None:
        self.document, self.meta = document, read_meta(document)
        self.id = _id(document)
        self.doubts: list[str] = []
        self.currency = self._currency()
        self.language = self._language()
        self.locale = self.language or locale

    def read(self) -> ShopOrder:
        document = self.document
        status, word = self._status()
        times = {name: self._time(name) for name in _TIMES}
        with_tax = document.get("prices_include_tax") is True
        lines = self._lines(with_tax=with_tax)
        # The last item that is stored may stand for many.
        apart = (lines or [])[: MAX_ITEMS if len(lines or ()) <= MAX_ITEMS else MAX_ITEMS - 1]
        refunds, has_all_refunds = self._refunds()
        created_via = text(document.get("created_via")).lower()
        parent = str(whole(document.get("parent_id")) or "")
        billing = document.get("billing")
        billing = billing if isinstance(billing, dict) else None
        return ShopOrder(
            id=self.id,
            status=status,
            shop_status=word,
            is_at_checkout=word in AT_CHECKOUT,
            may_be_abandoned=text(document.get("payment_method")) not in AFTERWARDS,
            number=cut(self._number(), longest("reference")),
            currency=self.currency or None,
            total=self._total(),
            created_at=times["date_created_gmt"],
            modified_at=times["date_modified_gmt"],
            paid_at=times["date_paid_gmt"],
            completed_at=times["date_completed_gmt"],
            user_id=self._user_id(),
            email=self._email(billing.get("email")) if billing is not None else "",
            name=_name(billing) if billing is not None else None,
            locale=self.language,
            items=None if lines is None else tuple(line.item for line in lines),
            charges=tuple(read_charges(document, self.currency, with_tax=with_tax))
            if lines is not None
            else None,
            details=read_details(document, locale=self.locale),
            refunds=refunds,
            has_all_refunds=has_all_refunds,
            parcels=read_parcels(document, items=[line.ids for line in apart]),
            is_import=created_via != "rest-api" and ("import" in created_via or "migrat" in created_via),
            parent=parent,
            silent=OF_PARENT if parent and created_via in MARKETPLACES else frozenset(),
            doubts=tuple(self.doubts),
        )

    def doubt(self, member: str, fault: str) -> None:
        self.doubts.append(f"{member}: {fault}")

    def _status(self) -> tuple[str | None, str]:
        """Return our status, None if only the connection knows it, and the shop's word."""
        status = self.document.get("status")
        word = read_status(status) if isinstance(status, str) else ""
        if not word:
            self.doubt("status", "It is not a word. The order keeps its status.")
            return "", ""
        return STATUSES.get(word), word

    def _currency(self) -> str:
        currency = self.document.get("currency")
        if currency is None:
            return ""
        word = currency.strip() if isinstance(currency, str) else currency
        return read_currency(word, total=decimal(self.document.get("total")))

    def _language(self) -> str:
        """Return the language tag of the plug-in that has one, or ""."""
        words = (text(self.meta.get(key)).replace("_", "-") for key in _LANGUAGES)
        word = next(filter(None, words), "")
        return word if is_locale(word) else nearest_locale(word) or ""

    def _number(self) -> str:
        number = self.document.get("number")
        written = str(whole(number)) if isinstance(number, int | float) else html_text(number)
        return written or self.id

    def _user_id(self) -> str | None:
        customer = whole(self.document.get("customer_id"))
        return None if customer is None else str(customer) if customer else f"guest-{self.id}"

    def _total(self) -> int | None:
        if not self.currency:
            return None
        total = minor(self.document.get("total"), self.currency)
        if total is None:
            if (odd := odd_amount(self.document.get("total"))) is None:
                self.doubt("total", "It is not an amount. The order keeps its total.")
                return None
            total = scaled(odd, self.currency)
            self.doubt("total", f"It is written oddly, and was read as {odd}.")
        if total < 0:
            self.doubt("total", f"The shop says {total} minor units of {self.currency}. 0 is stored.")
        return min(max(0, total), MAX_AMOUNT)

    def _time(self, name: str) -> dt.datetime | None:
        try:
            return time(self.document.get(name))
        except ValueError:
            self.doubt(name, "It is not a time.")
            return None

    def _email(self, value: object) -> str:
        if not isinstance(value, str) or not value.strip():
            return ""
        try:
            return read_address(value.strip())
        except NotAnAddress:
            self.doubt("email", "The address is none that a provider takes.")
            return ""

    def _refunds(self) -> tuple[tuple[ShopRefund, ...] | None, bool]:
        """Return the refunds that gave money back, and whether all could be read.

        WooCommerce writes their totals with a minus.
        """
        entries = listed(self.document.get("refunds"))
        if entries is None or not self.currency:
            if "refunds" in self.document:
                self.doubt("refunds", "They are not a list. The order keeps its refunds.")
            return None, False
        amounts: dict[str, int] = {}
        has_all = True
        for entry in entries:
            total = entry.get("total") if isinstance(entry, dict) else None
            amount = minor(total, self.currency)
            if amount is None and (odd := odd_amount(total)) is not None:
                amount = scaled(odd, self.currency)
                self.doubt("refunds", f"An amount is written oddly, and was read as {odd}.")
            if amount is None:
                has_all = False
                self.doubt("refunds", "One has no amount. The order keeps its refunds.")
                continue
            id = whole(entry.get("id"))
            if not id:
                self.doubt("refunds", "One has no id. It is known by its amount.")
            name = str(id) if id else f"{abs(amount)} without an id"
            while not id and name in amounts:
                name += "+"
            amounts[name] = min(abs(amount), MAX_AMOUNT)
        ids = sorted(amounts, key=lambda id: (not id.isdecimal(), int(id) if id.isdecimal() else 0, id))
        return tuple(ShopRefund(id, amounts[id]) for id in ids if amounts[id]), has_all

    def _lines(self, *, with_tax: bool) -> list[_ReadLine] | None:
        """Return the order's lines without those that take money off, which are charges."""
        if listed(self.document.get("line_items")) is None:
            self.doubt("line_items", "They are not a list. The order keeps its items.")
            return None
        if not self.currency:
            return None
        lines = members(self.document, "line_items")
        return list(_read_lines(lines, self.currency, with_tax=with_tax))


def _id(document: Mapping[str, Any]) -> str:
    id = whole(document.get("id"))
    if not id or id < 0:
        raise Rejected("its id is not a number")
    return str(id)


class _ReadLine(NamedTuple):
    item: Item
    ids: frozenset[int]  # of the line, its product and its variation


def _read_lines(lines: Any, currency: str, *, with_tax: bool) -> Iterator[_ReadLine]:
    for line in lines:
        amount, quantity = line_amount(line, with_tax=with_tax), decimal(line.get("quantity"))
        if quantity is None or quantity <= 0 or amount < 0:
            continue
        if quantity != quantity.to_integral_value() or quantity > _MOST_ITEMS_OF_LINE:
            quantity = Decimal(1)  # 2.5 kg, which a plug-in allows
        ids = [whole(line.get(key)) for key in ("variation_id", "product_id", "id")]
        sku = html_text(line.get("sku")) or str(next(filter(None, ids), "-"))
        unit_amount, total_amount = (
            min(scaled(sum, currency), MAX_AMOUNT) for sum in (amount / quantity, amount)
        )
        item: dict[str, Any] = {
            "sku": cut(sku, longest("sku", ItemBody)),
            "name": cut(html_text(line.get("name")) or sku, longest("name", ItemBody)),
            "quantity": int(quantity),
            "unit_amount": unit_amount,
        }
        if unit_amount * int(quantity) != total_amount:
            item["total_amount"] = total_amount
        yield _ReadLine(item, frozenset(id for id in ids if id))


def _name(billing: Mapping[str, Any]) -> str:
    parts = [html_text(billing.get(key)) for key in ("first_name", "last_name")]
    return cut(" ".join(filter(None, parts)) or html_text(billing.get("company")), longest("name"))
