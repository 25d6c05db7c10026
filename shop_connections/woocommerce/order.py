"""Read an order of WooCommerce: the body of a webhook, or a member of the orders API's list.

WooCommerce writes a post when it sends it, so a post has the order as it is then, whatever caused it.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from html import unescape
from typing import Any, NamedTuple

from events.consuming.envelope import DEEPEST, Rejected
from notifications.content.rendering import minor_digits
from orders.fields import ITEM_FIELDS, MAX_AMOUNT, MAX_ITEMS, longest
from runtime.addresses import NotAnAddress, read_address
from runtime.texts import one_line
from shop_connections.woocommerce.parcels import Parcel, read_parcels
from web.api.bodies import NotStrict, parse_json

_CURRENCY = re.compile(r"[A-Z]{3}")
_STATUS = re.compile(r"[a-z0-9][a-z0-9_-]{0,49}")
_CODE = re.compile(r"[a-z0-9_]{1,80}")
_LONGEST_ITEM_TEXT = {field.name: field.most for field in ITEM_FIELDS}
_MOST_ITEMS_OF_LINE = 10**6
Item = Mapping[str, str | int]


class ShopRefund(NamedTuple):
    id: str
    amount: int


class ShopOrder(NamedTuple):
    """The order in a body. Amounts are in minor units, and texts fit the columns of `orders`."""

    id: str
    number: str
    status: str  # the shop's, without the prefix "wc-"
    currency: str
    total: int
    refunds: tuple[ShopRefund, ...]  # oldest first
    created_at: dt.datetime
    modified_at: dt.datetime
    paid_at: dt.datetime | None
    completed_at: dt.datetime | None
    payment_method: str
    user_id: str
    email: str  # "" if no provider would take it
    name: str
    items: tuple[Item, ...]
    parcels: tuple[Parcel, ...]


def read_order(body: bytes) -> ShopOrder | None:
    """Return a body's order, or None if the body is about none. Raise `Rejected`."""
    document = _parse(body)
    return _read(document) if _is_order(document) else None


def read_order_id(body: bytes) -> str | None:
    """Return the id of a body's order, or None if the body is about none. Raise `Rejected`."""
    document = _parse(body)
    return _id(document) if _is_order(document) else None


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


def _read(document: Mapping[str, Any]) -> ShopOrder:
    id, currency = _id(document), document.get("currency")
    if not isinstance(currency, str) or not _CURRENCY.fullmatch(currency):
        raise Rejected("its currency is not three capital letters")
    modified_at = _time(document, "date_modified_gmt")
    if modified_at is None:
        raise Rejected("its date_modified_gmt is missing")
    total = _minor(document.get("total"), currency)
    if total is None or total < 0:
        raise Rejected("its total is not an amount")
    customer = _whole(document.get("customer_id"))
    billing = document.get("billing")
    billing = billing if isinstance(billing, dict) else {}
    lines = list(_lines(document, currency))
    return ShopOrder(
        id=id,
        number=_cut(_text(document.get("number")) or id, longest("reference")),
        status=_status(document),
        currency=currency,
        total=total,
        refunds=_refunds(document, currency),
        created_at=_time(document, "date_created_gmt") or modified_at,
        modified_at=modified_at,
        paid_at=_time(document, "date_paid_gmt"),
        completed_at=_time(document, "date_completed_gmt"),
        payment_method=_text(document.get("payment_method")),
        user_id=str(customer) if customer else f"guest-{id}",
        email=_email(billing.get("email")),
        name=_name(billing),
        items=tuple(line.item for line in lines),
        parcels=read_parcels(document, items=[line.ids for line in lines]),
    )


def _id(document: Mapping[str, Any]) -> str:
    id = _whole(document.get("id"))
    if not id or id < 0:
        raise Rejected("its id is not a number")
    return str(id)


def _status(document: Mapping[str, Any]) -> str:
    status = document.get("status")
    if not isinstance(status, str) or not _STATUS.fullmatch(status := status.removeprefix("wc-")):
        raise Rejected("its status is missing or has other characters than a-z, 0-9, - and _")
    return status


def _refunds(document: Mapping[str, Any], currency: str) -> tuple[ShopRefund, ...]:
    """Return the refunds that gave money back. WooCommerce writes their totals with a minus."""
    listed = document.get("refunds")
    if not isinstance(listed, list):
        raise Rejected("its refunds are missing")
    amounts: dict[int, int] = {}
    for refund in listed:
        id = _whole(refund.get("id")) if isinstance(refund, dict) else None
        amount = _minor(refund.get("total"), currency) if id else None
        if id is None or amount is None:
            raise Rejected("one of its refunds has no id or no total")
        amounts[id] = abs(amount)
    return tuple(ShopRefund(str(id), amount) for id, amount in sorted(amounts.items()) if amount)


class _ReadLine(NamedTuple):
    item: Item
    ids: frozenset[int]  # of the line, its product and its variation


def _lines(document: Mapping[str, Any], currency: str) -> Iterator[_ReadLine]:
    """Yield the order's lines, with the tax if the shop's prices include it."""
    listed = document.get("line_items")
    lines = [line for line in listed if isinstance(line, dict)] if isinstance(listed, list) else []
    with_tax = document.get("prices_include_tax") is True
    for line in lines[:MAX_ITEMS]:
        total, tax = _decimal(line.get("total")), _decimal(line.get("total_tax")) if with_tax else None
        amount, quantity = (total or Decimal(0)) + (tax or Decimal(0)), _decimal(line.get("quantity"))
        if quantity is None or quantity <= 0 or amount < 0:
            continue
        if quantity != quantity.to_integral_value() or quantity > _MOST_ITEMS_OF_LINE:
            quantity = Decimal(1)  # 2.5 kg, which a plug-in allows
        ids = [_whole(line.get(key)) for key in ("variation_id", "product_id", "id")]
        sku = _text(line.get("sku")) or str(next(filter(None, ids), "-"))
        item: Item = {
            "sku": _cut(sku, _LONGEST_ITEM_TEXT["sku"]),
            "name": _cut(_html_text(line.get("name")) or sku, _LONGEST_ITEM_TEXT["name"]),
            "quantity": int(quantity),
            "unit_amount": min(_scaled(amount / quantity, currency), MAX_AMOUNT),
        }
        yield _ReadLine(item, frozenset(id for id in ids if id))


def _email(value: object) -> str:
    try:
        return read_address(value.strip()) if isinstance(value, str) else ""
    except NotAnAddress:
        return ""


def _name(billing: Mapping[str, Any]) -> str:
    parts = [_text(billing.get(key)) for key in ("first_name", "last_name")]
    return _cut(" ".join(filter(None, parts)) or _text(billing.get("company")), longest("name"))


def _text(value: object) -> str:
    return one_line(value) if isinstance(value, str) else ""


def _html_text(value: object) -> str:
    return _text(unescape(value)) if isinstance(value, str) else ""


def _cut(text: str, most: int | None) -> str:
    return text if most is None or len(text) <= most else f"{text[: most - 1].rstrip()}…"


def _whole(value: object) -> int | None:
    """Return a whole number, also one that a plug-in wrote as text."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        return int(value)
    return value if type(value) is int else None


def _decimal(value: object) -> Decimal | None:
    if not isinstance(value, str | int | float) or isinstance(value, bool) or len(str(value)) > 40:
        return None
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation:
        return None
    return number if number.is_finite() and abs(number) < 10**16 else None


def _minor(value: object, currency: str) -> int | None:
    """Return an amount in minor units. The shop may write fewer or more decimals than the currency has."""
    number = _decimal(value)
    return None if number is None else _scaled(number, currency)


def _scaled(number: Decimal, currency: str) -> int:
    return int(number.scaleb(minor_digits(currency)).quantize(Decimal(1), ROUND_HALF_UP))


def _time(document: Mapping[str, Any], key: str) -> dt.datetime | None:
    """Return a time of a member `…_gmt`, which has no zone, or None if it has none."""
    value = document.get(key)
    if value is None or value == "":
        return None
    try:
        time = dt.datetime.fromisoformat(value)
        return time.astimezone(dt.UTC) if time.tzinfo else time.replace(tzinfo=dt.UTC)
    except (ValueError, TypeError, OverflowError):
        raise Rejected(f"its {key} is not a time") from None
