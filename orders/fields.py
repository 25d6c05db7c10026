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

from runtime.personal_data import ERASED, ERASED_ADDRESS

MAX_AMOUNT = 10**12
MAX_ITEMS = 200


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
    erased: str | None = None  # replaces it when the person is erased; None if it is not personal

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
)
CHARGE_KINDS = ("shipping", "discount", "gift_card", "tax", "fee")
#: The members of the column `details`, empty and with a sample.
NO_DETAILS: Mapping[str, object] = {
    "delivery_address": [],
    "billing_address": [],
    "delivery_method": "",
    "payment_method": "",
    "customer_note": "",
    "order_url": "",
}
DETAIL_SAMPLES: Mapping[str, object] = {
    "delivery_address": ["Anna Schmidt", "Dorotheenstraße 101", "10117 Berlin", "Germany"],
    "billing_address": ["Schmidt & Söhne GmbH", "Unter den Linden 5", "10117 Berlin", "Germany"],
    "delivery_method": "DHL parcel",
    "payment_method": "Visa …4242",
    "customer_note": "Please ring twice.",
    "order_url": "https://shop.example.com/orders/42",
}
#: The columns with personal data, and their values after an erasure.
ERASED_VALUES = {field.name: field.erased for field in ORDER_FIELDS if field.erased is not None}
_ERASED_ITEM_VALUES = {field.name: field.erased for field in ITEM_FIELDS if field.erased is not None}


def erase_items(items: Iterable[Mapping[str, object]]) -> list[dict[str, object]]:
    """Return the column `items` of an erased order."""
    return [{**item, **_ERASED_ITEM_VALUES} for item in items]


def names(use: Use, fields: tuple[OrderField, ...] = ORDER_FIELDS) -> tuple[str, ...]:
    """Return the names of the fields that have the use."""
    return tuple(field.name for field in fields if use in field.uses)


def longest(name: str) -> int:
    """Return the length of the longest text of an order's field."""
    (most,) = (field.most for field in ORDER_FIELDS if field.name == name)
    assert most is not None
    return most
