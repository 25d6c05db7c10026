"""The rows between an order's lines and its total, as its e-mails show them. They always add up.

An order may have lines, charges, both or none, and what other systems report need not add up. So whatever is
missing between its parts and its total is a row of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from orders.details import LONGEST_LINE

#: Mail clients clip long e-mails, and the shop shows the whole list.
SHOWN_ITEMS = 20
MAX_ITEMS = 200
MAX_CHARGES = 20

#: An entry of the column `items`, whose `lines` says for how many lines it stands, if not for one.
Item = Mapping[str, Any]
#: An entry of the column `charges`. A tax that is `included` is in the other amounts.
Charge = Mapping[str, Any]


class ShownLine(NamedTuple):
    name: str
    quantity: int
    unit_amount: int | None  # None if it does not give the amount
    amount: int


class Row(NamedTuple):
    """A charge, or a sum that is missing between the parts and the total.

    `kind` is a charge's, or one of these: "items" is what an order without lines is worth, "extras" all that
    an order without charges costs beyond its lines, "rounding" at most one minor unit for each line and
    charge, and "other_charges" and "other_reductions" are the rest.
    """

    kind: str
    label: str
    amount: int


class Breakdown(NamedTuple):
    """An order's total in its parts: the sum of `lines`, `more_amount` and `rows` is the total."""

    lines: Sequence[ShownLine]
    more: int  # further lines, and what they cost together
    more_amount: int
    rows: Sequence[Row]
    included: Sequence[Row]  # taxes, which are below the total and not added


def break_down(
    *, items: Sequence[Item], charges: Sequence[Charge], total: int, most: int = SHOWN_ITEMS
) -> Breakdown:
    """Return the parts of a total, with at most so many lines. Amounts are in minor units.

    >>> tea = {"name": "Tea", "quantity": 3, "unit_amount": 333, "total_amount": 1000}
    >>> parts = break_down(items=[tea], charges=[{"kind": "shipping", "amount": 590}], total=1591)
    >>> parts.lines[0].unit_amount, [(row.kind, row.amount) for row in parts.rows]
    (None, [('shipping', 590), ('rounding', 1)])
    """
    rows = [_row(charge) for charge in _added(charges)]
    rest = find_rest(items=items, charges=charges, total=total) if items or charges else 0
    if rest:
        kind = _kind_of_rest(rest, items=items, charges=charges)
        rows.insert(0 if kind == "items" else len(rows), Row(kind, "", rest))
    further = items[most:]
    return Breakdown(
        lines=[_line(item) for item in items[:most]],
        more=count_lines(further),
        more_amount=sum(map(amount_of, further)),
        rows=rows,
        included=[_row(charge) for charge in charges if charge.get("included")],
    )


def amount_of(item: Item) -> int:
    """Return what a line costs."""
    amount: int = item.get("total_amount", item["quantity"] * item["unit_amount"])
    return amount


def find_rest(*, items: Sequence[Item], charges: Sequence[Charge], total: int) -> int:
    """Return what the lines and the charges lack of the total. It is negative if they are more."""
    charged: int = sum(charge["amount"] for charge in _added(charges))
    return total - sum(map(amount_of, items)) - charged


def has_gap(*, items: Sequence[Item], charges: Sequence[Charge], total: int) -> bool:
    """Return whether an order has lines and charges, and they miss the total by more than rounding."""
    rest = find_rest(items=items, charges=charges, total=total)
    return bool(items and charges) and abs(rest) > _most_rounding(items, charges)


def _kind_of_rest(rest: int, *, items: Sequence[Item], charges: Sequence[Charge]) -> str:
    if not items and rest > 0:
        return "items"
    if items and abs(rest) <= _most_rounding(items, charges):
        return "rounding"
    if rest < 0:
        return "other_reductions"
    return "other_charges" if charges else "extras"


def _most_rounding(items: Sequence[Item], charges: Sequence[Charge]) -> int:
    return count_lines(items) + len(_added(charges))


def count_lines(items: Sequence[Item]) -> int:
    """Return for how many lines of the shop some items stand."""
    return sum(int(item.get("lines", 1)) for item in items)


def _added(charges: Sequence[Charge]) -> list[Charge]:
    return [charge for charge in charges if not charge.get("included")]


def _row(charge: Charge) -> Row:
    return Row(charge["kind"], charge.get("label", ""), charge["amount"])


def _line(item: Item) -> ShownLine:
    amount, unit = amount_of(item), item["unit_amount"]
    return ShownLine(
        item["name"], item["quantity"], unit if unit * item["quantity"] == amount else None, amount
    )


class StoredParts(NamedTuple):
    """The items and charges that an order stores of what another system reports."""

    items: list[Item]
    charges: list[Charge]
    places: Sequence[int | None]  # of each reported item; None if it is not stored as it is

    def move_lines(self, lines: Sequence[Mapping[str, int]]) -> list[dict[str, int]]:
        """Return the lines of a parcel with the new places of their items, or none if one has no place."""
        places = dict(enumerate(self.places))
        moved = [(places.get(line["item"], line["item"]), line["quantity"]) for line in lines]
        there = [{"item": item, "quantity": quantity} for item, quantity in moved if item is not None]
        return there if len(there) == len(lines) else []


def as_stored(items: Sequence[Item], charges: Sequence[Charge]) -> StoredParts:
    """Return what an order stores of a report. An item that takes money off becomes a discount."""
    is_kept = [amount_of(item) >= 0 <= item["unit_amount"] for item in items]
    kept = [item for item, kept in zip(items, is_kept, strict=True) if kept]
    off = [_discount(item) for item, kept in zip(items, is_kept, strict=True) if not kept]
    apart = len(kept) if len(kept) <= MAX_ITEMS else MAX_ITEMS - 1
    numbers = itertools.count()
    return StoredParts(
        items=[dict(item) for item in fold_items(kept)],
        charges=[dict(charge) for charge in fold_charges([*charges, *off])],
        places=[number if kept and (number := next(numbers)) < apart else None for kept in is_kept],
    )


def _discount(item: Item) -> Charge:
    return {"kind": "discount", "label": item["name"][:LONGEST_LINE], "amount": amount_of(item)}


def fold_items(items: Sequence[Item]) -> list[Item]:
    """Return as many items as an order stores. Beyond, the rest is one item with its sum.

    >>> folded = fold_items([{"name": "Tea", "quantity": 2, "unit_amount": 5}] * 250)
    >>> len(folded), folded[-1]["name"], folded[-1]["unit_amount"]
    (200, '51 further items', 510)
    """
    if len(items) <= MAX_ITEMS:
        return list(items)
    kept, rest = items[: MAX_ITEMS - 1], items[MAX_ITEMS - 1 :]
    return [*kept, _further(len(rest), sum(map(amount_of, rest)))]


def _further(count: int, amount: int) -> Item:
    name = f"{count} further items"
    return {"sku": "-", "name": name, "quantity": 1, "unit_amount": amount, "lines": count}


def fold_charges(charges: Sequence[Charge]) -> list[Charge]:
    """Return as many charges as an order stores. The rest is one charge, and its included taxes another.

    >>> [charge["amount"] for charge in fold_charges([{"kind": "fee", "amount": 1}] * 22)][-2:]
    [1, 3]
    """
    if len(charges) <= MAX_CHARGES:
        return list(charges)
    of_rest = {bool(charge.get("included")) for charge in charges[MAX_CHARGES - 1 :]}
    kept = MAX_CHARGES - len(of_rest)
    added = _added(charges[kept:])
    included = [charge for charge in charges[kept:] if charge.get("included")]
    return [*charges[:kept], *(_together(group) for group in (added, included) if group)]


def _together(charges: Sequence[Charge]) -> Charge:
    amount, kinds = sum(charge["amount"] for charge in charges), {charge["kind"] for charge in charges}
    kind = kinds.pop() if len(kinds) == 1 else "fee" if amount >= 0 else "discount"
    together = {"kind": kind, "amount": amount}
    return together | {"included": True} if charges[0].get("included") else together
