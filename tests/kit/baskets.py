"""Twenty baskets, as shops show them: items, charges, and a total that is theirs.

`with_lines` gives a basket more of them. `add_up` reads the sums of an e-mail as its reader does.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from html.parser import HTMLParser
from typing import Any, NamedTuple

from notifications.content.render_files import RenderedEmail
from notifications.content.rendering import minor_digits

LINES = (0, 25, 250)  # 0: the lines of the basket alone


class Basket(NamedTuple):
    name: str
    total: int
    items: Sequence[Mapping[str, Any]] = ()
    charges: Sequence[Mapping[str, Any]] = ()
    currency: str = "EUR"
    refunded: int = 0
    #: Our own API takes only sums that add up, what costs something, and no item that takes money off.
    is_for_api: bool = True
    rows: Sequence[str] = ()  # the rows of its e-mail below its lines, by kind

    def with_lines(self, count: int) -> Basket:
        """Return the basket with so many lines. The further ones cost something unless all is free."""
        more = count - len(self.items)
        if more <= 0:
            return self
        unit = 100 if self.total else 0
        total = self.total + more * unit
        if not self.items:  # the lines are what the charges do not explain
            unit, total = (self.total - sum(c["amount"] for c in added(self.charges))) // more, self.total
        filler = [item(f"Filler {number}", 1, unit) for number in range(more)]
        if not self.items:
            filler[-1] |= {
                "unit_amount": total - sum(c["amount"] for c in added(self.charges)) - unit * (more - 1)
            }
        refunded = total if self.refunded == self.total else self.refunded
        return self._replace(
            name=f"{self.name}, {count} lines", items=[*self.items, *filler], total=total, refunded=refunded
        )


def item(name: str, quantity: int, unit_amount: int, total_amount: int | None = None) -> dict[str, Any]:
    sum = {} if total_amount is None else {"total_amount": total_amount}
    return {"sku": "S", "name": name, "quantity": quantity, "unit_amount": unit_amount, **sum}


def charge(kind: str, amount: int, label: str = "", **included: bool) -> dict[str, Any]:
    return {"kind": kind, "amount": amount, **({"label": label} if label else {}), **included}


def added(charges: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [charge for charge in charges if not charge.get("included")]


TEA = item("Green tea", 2, 2495)
SHIPPING = charge("shipping", 590, "DHL")
BASKETS = [
    Basket(
        "tax in prices, a coupon of 10 %, shipping",
        5081,
        [TEA],
        [charge("discount", -499, "TEN"), SHIPPING, charge("tax", 811, "VAT 19 %", included=True)],
    ),
    Basket("lines before coupons", 4000, [item("Mug", 2, 2500)], [charge("discount", -1000)]),
    Basket("gift card", 3000, [TEA], [charge("gift_card", -1990, "GIFT-2ZX9-77QA")]),
    Basket("voucher on the order", 4490, [TEA], [charge("discount", -500, "WELCOME")]),
    Basket(
        "bundle with children of 0", 4990, [item("Set", 1, 4990), item("Cup", 2, 0), item("Pot", 1, 0)], []
    ),
    Basket("3 for 10.00", 1590, [item("Soap", 3, 333, 1000)], [SHIPPING]),
    Basket("7 for 100.00", 10590, [item("Candle", 7, 1429, 10000)], [SHIPPING]),
    Basket(
        "tax on top",
        5943,
        [item("Tea", 2, 2202)],
        [SHIPPING, charge("tax", 837, "VAT 19 %"), charge("tax", 112, "VAT 19 % on shipping")],
    ),
    Basket("yen", 1580, [item("Tea", 3, 360)], [charge("shipping", 500)], "JPY"),
    Basket("dinars", 12345, [item("Tea", 3, 3615)], [charge("shipping", 1500)], "KWD"),
    Basket("round at subtotal", 999, [item("Pen", 1, 833)], [charge("tax", 167, "VAT")], is_for_api=False),
    Basket("charges without items", 5590, [], [charge("discount", -400), SHIPPING]),
    Basket(
        "all free",
        0,
        [item("Sample", 3, 0)],
        [charge("shipping", 0, "Free shipping")],
        is_for_api=False,
    ),
    Basket("refund of a part", 5580, [TEA], [SHIPPING], refunded=1990),
    Basket("items alone, shipping in the total", 5580, [TEA]),
    Basket("items alone, discount in the total", 4000, [TEA]),
    Basket("neither", 4990),
    Basket(
        "charges beyond 20",
        4990 + 30,
        [TEA],
        [charge("fee", 1, f"Fee {number}") for number in range(30)],
        is_for_api=False,
    ),
    Basket(
        "a line that takes money off",
        3000,
        [item("Loyalty", 1, -1990), TEA],
        [charge("tax", 479, included=True)],
        is_for_api=False,
    ),
    Basket("a gap", 9990, [TEA], [SHIPPING], is_for_api=False),
]


class _Cells(HTMLParser):
    """Keeps the cells of each row of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.is_in_cell = False

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
            self.is_in_cell = False
        elif tag == "td":
            self.rows[-1].append("")
            self.is_in_cell = True

    def handle_endtag(self, tag):
        self.is_in_cell = self.is_in_cell and tag != "td"

    def handle_data(self, data):
        if self.is_in_cell:
            self.rows[-1][-1] += data


class Sums(NamedTuple):
    """The sums that a body of an e-mail shows, in minor units."""

    parts: list[int]  # of the rows above the total
    total: int
    below: dict[str, int]  # of the rows below it, by their words


def add_up(email: RenderedEmail, *, currency: str) -> list[Sums]:
    """Return what the text and the HTML of an English e-mail show."""
    page = _Cells()
    page.feed(email.body_html)
    cells = [(row[0].strip(), row[1].strip()) for row in page.rows if len(row) == 2]
    first = next(number for number, (_, right) in enumerate(cells) if right.startswith("Placed on"))
    lines = [line.strip() for line in email.body_text.splitlines()]
    pairs = [
        (name, value.rpartition(" = ")[2]) for name, _, value in (line.rpartition(": ") for line in lines)
    ]
    start = next(number for number, (name, _) in enumerate(pairs) if name == "Placed on")
    return [
        _sums([pair for pair in pairs[start + 1 :] if pair[0]], currency),
        _sums(cells[first + 1 :], currency),
    ]


def _sums(rows: Sequence[tuple[str, str]], currency: str) -> Sums:
    total = [name for name, _ in rows].index("Total")
    below = itertools.takewhile(
        lambda row: row[0].startswith(("includes", "Refunded", "Not refunded")), rows[total + 1 :]
    )
    return Sums(
        [_money(value, currency) for _, value in rows[:total]],
        _money(rows[total][1], currency),
        {name: _money(value, currency) for name, value in below},
    )


def _money(text: str, currency: str) -> int:
    digits = re.sub(r"[^0-9.-]", "", text)
    return int(Decimal(digits).scaleb(minor_digits(currency)))
