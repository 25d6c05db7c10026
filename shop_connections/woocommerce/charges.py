"""Read what a customer of WooCommerce pays besides the lines, as the shop's own e-mails show it.

If the shop's prices include the tax, all amounts have it in them, and the taxes are included. Otherwise each
tax is a charge. Lines have their prices before coupons, and each coupon is a discount.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from orders.breakdown import Charge, fold_charges
from shop_connections.woocommerce.values import cut, decimal, html_text, members, scaled

_LONGEST_LABEL = 100


def line_amount(line: Mapping[str, Any], *, with_tax: bool) -> Decimal:
    """Return what a line costs before coupons, which a shop without `subtotal` does not tell."""
    return _amount(line, "total" if decimal(line.get("subtotal")) is None else "subtotal", with_tax=with_tax)


def read_charges(document: Mapping[str, Any], currency: str, *, with_tax: bool) -> list[Charge]:
    """Return the order's charges, with one for each line that takes money off. Amounts are in minor units."""
    charges = [
        *_discounts(document, with_tax=with_tax),
        *_shipping(document, with_tax=with_tax),
        *_fees(document, with_tax=with_tax),
        *_taxes(document, is_included=with_tax),
    ]
    return fold_charges([_charge(charge, currency) for charge in charges])


def delivery_method(document: Mapping[str, Any]) -> str:
    titles = (html_text(line.get("method_title")) for line in members(document, "shipping_lines"))
    return ", ".join(dict.fromkeys(filter(None, titles)))


def _charge(charge: Mapping[str, Any], currency: str) -> Charge:
    kept = {name: value for name, value in charge.items() if value}
    return kept | {"amount": scaled(charge["amount"], currency)}


def _discounts(document: Mapping[str, Any], *, with_tax: bool) -> Iterator[Mapping[str, Any]]:
    """Yield the coupons, the lines that take money off, and what staff took off the other lines' totals."""
    off = Decimal(0)
    for line in members(document, "line_items"):
        amount = line_amount(line, with_tax=with_tax)
        if amount < 0:
            yield {"kind": "discount", "label": _label(line.get("name")), "amount": amount}
        off += amount - _amount(line, "total", with_tax=with_tax)
    for coupon in members(document, "coupon_lines"):
        tax = "discount_tax" if with_tax else ""
        amount = (decimal(coupon.get("discount")) or Decimal(0)) + (decimal(coupon.get(tax)) or Decimal(0))
        off -= amount
        if amount:
            yield {"kind": "discount", "label": _label(coupon.get("code")), "amount": -amount}
    if off > _MOST_ROUNDING:
        yield {"kind": "discount", "amount": -off}


#: Coupons are rounded for each line, and their sum only once.
_MOST_ROUNDING = Decimal("0.05")


def _shipping(document: Mapping[str, Any], *, with_tax: bool) -> Iterator[Mapping[str, Any]]:
    lines = members(document, "shipping_lines")
    if lines:
        amount = sum((_amount(line, "total", with_tax=with_tax) for line in lines), Decimal(0))
        yield {"kind": "shipping", "amount": amount}


def _fees(document: Mapping[str, Any], *, with_tax: bool) -> Iterator[Mapping[str, Any]]:
    for fee in members(document, "fee_lines"):
        amount = _amount(fee, "total", with_tax=with_tax)
        if amount:
            kind = "fee" if amount > 0 else "discount"
            yield {"kind": kind, "label": _label(fee.get("name")), "amount": amount}


def _taxes(document: Mapping[str, Any], *, is_included: bool) -> Iterator[Mapping[str, Any]]:
    lines = members(document, "tax_lines")
    for tax in lines:
        of_items, of_shipping = (decimal(tax.get(key)) for key in ("tax_total", "shipping_tax_total"))
        amount = (of_items or Decimal(0)) + (of_shipping or Decimal(0))
        if amount:
            yield {"kind": "tax", "label": _rate(tax), "amount": amount, "included": is_included}
    amount = decimal(document.get("total_tax")) or Decimal(0)
    if not lines and amount:
        yield {"kind": "tax", "amount": amount, "included": is_included}


def _rate(tax: Mapping[str, Any]) -> str:
    """Return the name of a tax with its rate, such as "VAT 19 %"."""
    label, rate = _label(tax.get("label")), decimal(tax.get("rate_percent"))
    if rate is None or any(map(str.isdigit, label)):
        return label
    return f"{label} {rate.normalize():f} %".strip()


def _amount(line: Mapping[str, Any], key: str, *, with_tax: bool) -> Decimal:
    tax = decimal(line.get(f"{key}_tax")) if with_tax else None
    return (decimal(line.get(key)) or Decimal(0)) + (tax or Decimal(0))


def _label(value: object) -> str:
    return cut(html_text(value), _LONGEST_LABEL)
