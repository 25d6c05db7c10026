"""The fields of an order: the columns of `orders`, each declared once, and the fields of its items.

Request bodies, answers, events in and out, their JSON Schemas, e-mails, the admin and an erasure read these
declarations. orders.models repeats the types of the columns for mypy, and a test compares the two. The
settings import this module, which must therefore import no models.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from orders.breakdown import MAX_CHARGES, MAX_ITEMS
from orders.details import LONGEST_LINE, LONGEST_NOTE
from runtime.personal_data import ERASED, ERASED_ADDRESS

MAX_AMOUNT = 10**12


class Kind(enum.Enum):
    """The type of a field. orders.bodies has the checks of each kind that a shop gives."""

    ID = enum.auto()
    EMAIL = enum.auto()
    TEXT = enum.auto()  # one line; an optional one may be empty
    CURRENCY = enum.auto()
    LOCALE = enum.auto()
    AMOUNT = enum.auto()  # in the currency's minor unit
    NUMBER = enum.auto()
    ITEMS = enum.auto()
    CHARGES = enum.auto()
    DETAILS = enum.auto()  # the fields of `DETAIL_FIELDS`, flat in bodies and answers
    LINE = enum.auto()  # a customer's text as one line, without invisible characters
    ADDRESS = enum.auto()  # such lines
    PAYMENT_METHOD = enum.auto()  # a text without the number of a card
    WEB_ADDRESS = enum.auto()
    STATUS = enum.auto()
    FULFILMENT = enum.auto()
    LINES = enum.auto()  # of the timeline
    TIME = enum.auto()


class Use(enum.Flag):
    """Where a field appears."""

    NONE = 0
    GIVEN = enum.auto()  # by the shop: POST /orders, the command, and the events of other systems
    ANSWERS = enum.auto()  # of the API
    EVENTS = enum.auto()  # that are published; they have no personal data
    CSV = enum.auto()  # of the admin's list
    SHOWN = ANSWERS | CSV
    USUAL = GIVEN | SHOWN


@dataclass(frozen=True, slots=True)
class OrderField:
    """One column of an order. Its default is that of the model."""

    name: str
    kind: Kind
    uses: Use
    _: KW_ONLY
    is_required: bool = False  # the shop must give it
    least: int = 0
    most: int | None = None  # the longest text, the largest number, the most items
    help: str = ""
    event_name: str = ""  # its name in events, if that is not its name in camelCase
    section: str = ""  # of the order's page in the admin; "" hides it there
    sample: object = None  # for the samples of e-mails, which get the field if it has one
    erased: object = None  # replaces it when the person is erased; None if it is not personal

    @property
    def json_name(self) -> str:
        """The field's name in events."""
        return self.event_name or camel(self.name)


def camel(name: str) -> str:
    """Return the name of an API field in events.

    >>> camel("total_amount")
    'totalAmount'
    """
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), name)


#: In the order of answers and of the admin.
ORDER_FIELDS = (
    OrderField("id", Kind.ID, Use.SHOWN | Use.EVENTS, event_name="orderId", section="Order"),
    OrderField(
        "user_id", Kind.ID, Use.GIVEN | Use.ANSWERS | Use.EVENTS, section="Customer", is_required=True
    ),
    OrderField("email", Kind.EMAIL, Use.USUAL, section="Customer", is_required=True, erased=ERASED_ADDRESS),
    OrderField("name", Kind.TEXT, Use.USUAL, section="Customer", most=200, sample="Anna Schmidt", erased=""),
    OrderField(
        "reference",
        Kind.TEXT,
        Use.USUAL,
        section="Order",
        most=100,
        sample="A-10234",
        help="The shop's own number",
    ),
    OrderField("status", Kind.STATUS, Use.SHOWN | Use.EVENTS, section="Order", most=20),
    OrderField(
        "fulfilment",
        Kind.FULFILMENT,
        Use.SHOWN | Use.EVENTS,
        section="Order",
        most=20,
        help="How much of the order has left in parcels",
    ),
    OrderField(
        "version",
        Kind.NUMBER,
        Use.SHOWN,
        section="Order",
        help="Grows with every event of the order",
    ),
    OrderField(
        "total_amount",
        Kind.AMOUNT,
        Use.USUAL | Use.EVENTS,
        section="Order",
        is_required=True,
        least=1,
        most=MAX_AMOUNT,
        help="In minor units, such as cents",
        sample=6890,
    ),
    OrderField("refunded_amount", Kind.AMOUNT, Use.SHOWN | Use.EVENTS, section="Order", most=MAX_AMOUNT),
    OrderField(
        "currency",
        Kind.CURRENCY,
        Use.USUAL | Use.EVENTS,
        most=3,
        sample="EUR",
        help="ISO 4217; USD if absent",
    ),
    OrderField(
        "locale",
        Kind.LOCALE,
        Use.USUAL,
        section="Customer",
        most=20,
        help="Language of the e-mails; if absent, that of the shop's profile, or en",
    ),
    OrderField("items", Kind.ITEMS, Use.GIVEN | Use.ANSWERS, section="Order", most=MAX_ITEMS),
    # An answer has these only if the order has them (orders.api.serializers).
    OrderField(
        "charges",
        Kind.CHARGES,
        Use.GIVEN | Use.CSV,
        most=MAX_CHARGES,
        help="What the total has besides the items. Together they give the total",
    ),
    OrderField("details", Kind.DETAILS, Use.GIVEN | Use.CSV, section="Customer", erased={}),
    OrderField("created_at", Kind.TIME, Use.SHOWN, section="Times"),
    OrderField("updated_at", Kind.TIME, Use.SHOWN, section="Times"),
    # Only a connection writes it.
    OrderField("reported_at", Kind.TIME, Use.NONE, section="Times"),
    OrderField("paid_at", Kind.TIME, Use.CSV, section="Times"),
    OrderField("stock_reserved_at", Kind.TIME, Use.NONE, section="Times"),
    OrderField("completed_at", Kind.TIME, Use.CSV, section="Times"),
    OrderField("untold_since", Kind.TIME, Use.NONE),
    # An answer has it only while such a payment must be returned (orders.api.serializers).
    OrderField("unexpected_payment_at", Kind.TIME, Use.NONE, section="Times"),
    OrderField("address_corrected_at", Kind.TIME, Use.NONE, section="Times"),
    # An answer has it only if another system owns the order (orders.api.serializers).
    OrderField("source", Kind.TEXT, Use.CSV, section="Order", most=100),
    OrderField("warnings", Kind.LINES, Use.NONE),
    OrderField("correlation_id", Kind.TEXT, Use.NONE, section="Times", most=128),
    OrderField("traceparent", Kind.TEXT, Use.NONE, most=55),
)
#: The fields of one item in the column `items`.
ITEM_FIELDS = (
    OrderField("sku", Kind.TEXT, Use.GIVEN | Use.ANSWERS | Use.EVENTS, is_required=True, most=100),
    # A shop may engrave a name, and nothing tells it from a product's.
    OrderField("name", Kind.TEXT, Use.GIVEN | Use.ANSWERS, is_required=True, most=200, erased=ERASED),
    OrderField(
        "quantity", Kind.NUMBER, Use.GIVEN | Use.ANSWERS | Use.EVENTS, is_required=True, least=1, most=10**6
    ),
    OrderField(
        "unit_amount",
        Kind.AMOUNT,
        Use.GIVEN | Use.ANSWERS,
        is_required=True,
        most=MAX_AMOUNT,
        help="In minor units",
    ),
    OrderField(
        "total_amount",
        Kind.AMOUNT,
        Use.GIVEN | Use.ANSWERS,
        most=MAX_AMOUNT,
        help="What the shop shows for the line, if it is not quantity × unit_amount",
    ),
)
#: The members of the column `details`, all of them personal.
DETAIL_FIELDS = (
    OrderField(
        "delivery_address",
        Kind.ADDRESS,
        Use.USUAL,
        most=LONGEST_LINE,
        sample=["Anna Schmidt", "Dorotheenstraße 101", "10117 Berlin", "Germany"],
    ),
    OrderField(
        "billing_address",
        Kind.ADDRESS,
        Use.USUAL,
        most=LONGEST_LINE,
        sample=["Schmidt & Söhne GmbH", "Unter den Linden 5", "10117 Berlin", "Germany"],
    ),
    OrderField("delivery_method", Kind.LINE, Use.USUAL, most=LONGEST_LINE, sample="DHL parcel"),
    OrderField("payment_method", Kind.PAYMENT_METHOD, Use.USUAL, most=LONGEST_LINE, sample="Visa …4242"),
    OrderField("customer_note", Kind.LINE, Use.USUAL, most=LONGEST_NOTE, sample="Please ring twice."),
    OrderField(
        "order_url",
        Kind.WEB_ADDRESS,
        Use.USUAL,
        help="The order's page in the shop",
        sample="https://shop.example.com/orders/42",
    ),
)
CHARGE_KINDS = ("shipping", "discount", "gift_card", "tax", "fee")
CHARGE_KINDS = ("shipping", "discount", "gift_card", "tax", "fee")
#: The members of `details` without a value.
NO_DETAILS: Mapping[str, object] = {
    field.name: [] if field.kind is Kind.ADDRESS else "" for field in DETAIL_FIELDS
}
#: The columns with personal data, and their values after an erasure.
ERASED_VALUES = {field.name: field.erased for field in ORDER_FIELDS if field.erased is not None}
_ERASED_ITEM_VALUES = {field.name: field.erased for field in ITEM_FIELDS if field.erased is not None}


def erase_items(items: Iterable[Mapping[str, object]]) -> list[dict[str, object]]:
    """Return the column `items` of an erased order."""
    return [{**item, **_ERASED_ITEM_VALUES} for item in items]


def erase_charges(charges: Iterable[Mapping[str, object]]) -> list[dict[str, object]]:
    """Return the column `charges` of an erased order. A label may have a code or a name."""
    return [{name: value for name, value in charge.items() if name != "label"} for charge in charges]


def pack_details(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body's values with the details that have a value in one column."""
    details = {name: values[name] for name in NO_DETAILS if values.get(name)}
    rest = {name: value for name, value in values.items() if name not in NO_DETAILS}
    return rest | {"details": details} if details else rest


def names(use: Use, fields: tuple[OrderField, ...] = ORDER_FIELDS) -> tuple[str, ...]:
    """Return the names of the fields that have the use."""
    return tuple(field.name for field in fields if use in field.uses)


def longest(name: str) -> int:
    """Return the length of the longest text of an order's field."""
    (most,) = (field.most for field in ORDER_FIELDS if field.name == name)
    assert most is not None
    return most
