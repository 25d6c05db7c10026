"""Read an order of WooCommerce: the body of a webhook, or a member of the orders API's list.

WooCommerce writes a post when it sends it, so a post has the order as it is then, whatever caused it.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from events.consuming.envelope import DEEPEST, Rejected
from orders.bodies import ItemBody, longest
from orders.breakdown import MAX_ITEMS, Charge, Item
from orders.fields import MAX_AMOUNT
from runtime.addresses import NotAnAddress, read_address
from shop_connections.currency import read_currency
from shop_connections.woocommerce.charges import line_amount, read_charges
from shop_connections.woocommerce.details import read_details
from shop_connections.woocommerce.parcels import Parcel, read_parcels
from shop_connections.woocommerce.values import cut, decimal, html_text, members, minor, scaled, text, whole
from web.api.bodies import NotStrict, parse_json

_STATUS = re.compile(r"[a-z0-9][a-z0-9_-]{0,49}")
_CODE = re.compile(r"[a-z0-9_]{1,80}")
_MOST_ITEMS_OF_LINE = 10**6


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
    items: tuple[Item, ...]  # all of them; an order stores fewer
    charges: tuple[Charge, ...]
    details: Mapping[str, Any]
    parcels: tuple[Parcel, ...]
    doubts: tuple[str, ...]


def read_order(body: bytes, *, locale: str) -> ShopOrder | None:
    """Return a body's order, or None if the body is about none. Raise `Rejected`.

    Addresses have the names of countries in the language of `locale`.
    """
    document = _parse(body)
    return _read(document, locale) if _is_order(document) else None


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


def _read(document: Mapping[str, Any], locale: str) -> ShopOrder:
    id = _id(document)
    currency = read_currency(document.get("currency"), total=decimal(document.get("total")))
    modified_at = _time(document, "date_modified_gmt")
    if modified_at is None:
        raise Rejected("its date_modified_gmt is missing")
    total = minor(document.get("total"), currency)
    if total is None:
        raise Rejected("its total is not an amount")
    customer = whole(document.get("customer_id"))
    billing = document.get("billing")
    billing = billing if isinstance(billing, dict) else {}
    with_tax = document.get("prices_include_tax") is True
    lines = list(_lines(document, currency, with_tax=with_tax))
    # The last item that is stored may stand for many.
    apart = lines if len(lines) <= MAX_ITEMS else lines[: MAX_ITEMS - 1]
    return ShopOrder(
        id=id,
        number=cut(text(document.get("number")) or id, longest("reference")),
        status=_status(document),
        currency=currency,
        total=max(0, total),
        refunds=_refunds(document, currency),
        created_at=_time(document, "date_created_gmt") or modified_at,
        modified_at=modified_at,
        paid_at=_time(document, "date_paid_gmt"),
        completed_at=_time(document, "date_completed_gmt"),
        payment_method=text(document.get("payment_method")),
        user_id=str(customer) if customer else f"guest-{id}",
        email=_email(billing.get("email")),
        name=_name(billing),
        items=tuple(line.item for line in lines),
        charges=tuple(read_charges(document, currency, with_tax=with_tax)),
        details=read_details(document, locale=locale),
        parcels=read_parcels(document, items=[line.ids for line in apart]),
        doubts=(f"total: The shop says {total} minor units of {currency}. 0 is stored.",)
        if total < 0
        else (),
    )


def _id(document: Mapping[str, Any]) -> str:
    id = whole(document.get("id"))
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
        id = whole(refund.get("id")) if isinstance(refund, dict) else None
        amount = minor(refund.get("total"), currency) if id else None
        if id is None or amount is None:
            raise Rejected("one of its refunds has no id or no total")
        amounts[id] = abs(amount)
    return tuple(ShopRefund(str(id), amount) for id, amount in sorted(amounts.items()) if amount)


class _ReadLine(NamedTuple):
    item: Item
    ids: frozenset[int]  # of the line, its product and its variation


def _lines(document: Mapping[str, Any], currency: str, *, with_tax: bool) -> Iterator[_ReadLine]:
    """Yield the order's lines, but not those that take money off, which are charges."""
    for line in members(document, "line_items"):
        amount, quantity = line_amount(line, with_tax=with_tax), decimal(line.get("quantity"))
        if quantity is None or quantity <= 0 or amount < 0:
            continue
        if quantity != quantity.to_integral_value() or quantity > _MOST_ITEMS_OF_LINE:
            quantity = Decimal(1)  # 2.5 kg, which a plug-in allows
        ids = [whole(line.get(key)) for key in ("variation_id", "product_id", "id")]
        sku = text(line.get("sku")) or str(next(filter(None, ids), "-"))
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


def _email(value: object) -> str:
    try:
        return read_address(value.strip()) if isinstance(value, str) else ""
    except NotAnAddress:
        return ""


def _name(billing: Mapping[str, Any]) -> str:
    parts = [text(billing.get(key)) for key in ("first_name", "last_name")]
    return cut(" ".join(filter(None, parts)) or text(billing.get("company")), longest("name"))


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
