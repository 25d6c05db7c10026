"""Read what a customer of Saleor pays: the lines, and what there is besides them.

With `displayGrossPrices`, as the shop shows its prices, all amounts have the tax in them. Otherwise the tax
is a charge.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from orders.bodies import ItemBody, longest
from orders.breakdown import Charge, Item, amount_of, fold_charges
from orders.details import LONGEST_LINE
from shop_connections.saleor.values import Json, cut, member, members, minor, text, whole

_MOST_ITEMS_OF_LINE = 10**6


class ReadLine(NamedTuple):
    id: str
    item: Item
    total: int  # after promotions, vouchers and the order's discounts


def read_lines(order: Json, currency: str) -> list[ReadLine]:
    """Return the lines at their prices before discounts, or at those after, if these are higher."""
    return list(_lines(order, currency))


def _lines(order: Json, currency: str) -> Iterator[ReadLine]:
    side = _side(order)
    for line in members(order, "lines"):
        quantity = whole(line.get("quantity"))
        total = minor(member(member(line, "totalPrice"), side), currency)
        if total is None or total < 0 or not 0 < quantity <= _MOST_ITEMS_OF_LINE:
            continue
        before = minor(member(member(line, "undiscountedTotalPrice"), side), currency)
        amount = max(total, before or 0)
        sku = text(line.get("productSku")) or text(line.get("id")) or "-"
        unit_amount = round(amount / quantity)
        item: dict[str, Any] = {
            "sku": cut(sku, longest("sku", ItemBody)),
            "name": cut(_name(line) or sku, longest("name", ItemBody)),
            "quantity": quantity,
            "unit_amount": unit_amount,
        }
        if unit_amount * quantity != amount:
            item["total_amount"] = amount
        yield ReadLine(text(line.get("id")), item, total)


def read_charges(
    order: Json, currency: str, *, lines: list[ReadLine], total: int | None
) -> tuple[Charge, ...]:
    """Return the discount, the shipping, the tax, and the gift card that paid a part of the total."""
    side = _side(order)
    charges: list[Charge] = []
    off = sum(line.total - amount_of(line.item) for line in lines)
    if off:
        charges.append(_labelled({"kind": "discount", "amount": off}, _discount(order)))
    if (shipping := minor(member(member(order, "shippingPrice"), side), currency)) is not None:
        method = text(order.get("shippingMethodName")) or text(order.get("collectionPointName"))
        if shipping or method:
            charges.append({"kind": "shipping", "amount": shipping})
    sums = member(order, "total")
    gross, net = (minor(member(sums, each), currency) for each in ("gross", "net"))
    if gross is not None and net is not None and gross > net:
        tax: dict[str, Any] = {"kind": "tax", "amount": gross - net}
        charges.append(tax | {"included": True} if side == "gross" else tax)
    parts = sum(line.total for line in lines) + sum(
        charge["amount"]
        for charge in charges
        if charge["kind"] in ("shipping", "tax") and "included" not in charge
    )
    cards = [text(card.get("last4CodeChars")) for card in members(order, "giftCards")]
    if cards and total is not None and total < parts:
        charges.append(
            _labelled({"kind": "gift_card", "amount": total - parts}, ", ".join(filter(None, cards)))
        )
    return tuple(fold_charges(charges))


def _side(order: Json) -> str:
    return "net" if order.get("displayGrossPrices") is False else "gross"


def _name(line: Json) -> str:
    product = text(line.get("translatedProductName")) or text(line.get("productName"))
    variant = text(line.get("translatedVariantName")) or text(line.get("variantName"))
    return product if not variant or variant in (product, line.get("productSku")) else f"{product}, {variant}"


def _discount(order: Json) -> str:
    """Return the voucher's code, or the names of the order's discounts."""
    names = (
        text(each.get("translatedName")) or text(each.get("name")) for each in members(order, "discounts")
    )
    return text(order.get("voucherCode")) or ", ".join(dict.fromkeys(filter(None, names)))


def _labelled(charge: dict[str, Any], label: str) -> Charge:
    return charge | {"label": cut(label, LONGEST_LINE)} if label else charge
