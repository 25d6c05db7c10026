"""The columns of an order: their sections in the admin, samples in e-mails, and what an erasure leaves.

orders.bodies, orders.api.serializers and orders.events name the fields that shops give, that answers show
and that events publish. A test compares them with this table and with the model. The settings import this
module, which must therefore import no models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from runtime.personal_data import ERASED, ERASED_ADDRESS

MAX_AMOUNT = 10**12
CHARGE_KINDS = ("shipping", "discount", "gift_card", "tax", "fee")


@dataclass(frozen=True, slots=True)
class OrderField:
    """One column of an order."""

    name: str
    section: str = ""  # of the order's page in the admin; "" hides it there
    _: KW_ONLY
    in_csv: bool = False  # of the admin's list
    sample: object = None  # for the samples of e-mails, which get the field if it has one
    erased: object = None  # replaces it when the person is erased; None if it is not personal


#: In the order of the admin.
ORDER_FIELDS = (
    OrderField("id", "Order", in_csv=True),
    OrderField("user_id", "Customer"),
    OrderField("email", "Customer", in_csv=True, erased=ERASED_ADDRESS),
    OrderField("name", "Customer", in_csv=True, sample="Anna Schmidt", erased=""),
    OrderField("reference", "Order", in_csv=True, sample="A-10234"),
    OrderField("status", "Order", in_csv=True),
    OrderField("fulfilment", "Order", in_csv=True),
    OrderField("version", "Order", in_csv=True),
    OrderField("total_amount", "Order", in_csv=True, sample=6890),
    OrderField("refunded_amount", "Order", in_csv=True),
    OrderField("currency", in_csv=True, sample="EUR"),
    OrderField("locale", "Customer", in_csv=True),
    OrderField("items", "Order"),
    OrderField("charges", in_csv=True),
    OrderField("details", "Customer", in_csv=True, erased={}),
    OrderField("created_at", "Times", in_csv=True),
    OrderField("updated_at", "Times", in_csv=True),
    OrderField("shop_key"),
    OrderField("reported_at", "Times"),  # only a connection writes it
    OrderField("paid_at", "Times", in_csv=True),
    OrderField("stock_reserved_at", "Times"),
    OrderField("completed_at", "Times", in_csv=True),
    OrderField("untold_since"),
    OrderField("unexpected_payment_at", "Times"),
    OrderField("address_corrected_at", "Times"),
    OrderField("source", "Order", in_csv=True),
    OrderField("warnings"),
    OrderField("correlation_id", "Times"),
    OrderField("traceparent"),
)
#: The members of the column `details` that e-mails show, with their samples.
DETAILS: Mapping[str, object] = {
    "delivery_address": ["Anna Schmidt", "Dorotheenstraße 101", "10117 Berlin", "Germany"],
    "billing_address": ["Schmidt & Söhne GmbH", "Unter den Linden 5", "10117 Berlin", "Germany"],
    "delivery_method": "DHL parcel",
    "payment_method": "Visa …4242",
    "customer_note": "Please ring twice.",
    "order_url": "https://shop.example.com/orders/42",
}
#: The same without a value.
NO_DETAILS: Mapping[str, object] = {
    name: [] if isinstance(sample, list) else "" for name, sample in DETAILS.items()
}
#: All members of the column `details`. All are personal.
DETAIL_NAMES = (*DETAILS, "time_zone")
#: The columns with personal data, and their values after an erasure.
ERASED_VALUES = {field.name: field.erased for field in ORDER_FIELDS if field.erased is not None}


def erase_items(items: Iterable[Mapping[str, object]]) -> list[dict[str, object]]:
    """Return the column `items` of an erased order. A shop may engrave a name, and nothing tells which."""
    return [{**item, "name": ERASED} for item in items]


def erase_charges(charges: Iterable[Mapping[str, object]]) -> list[dict[str, object]]:
    """Return the column `charges` of an erased order. A label may have a code or a name."""
    return [{name: value for name, value in charge.items() if name != "label"} for charge in charges]


def pack_details(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body's values with the details that have a value in one column."""
    details = {name: values[name] for name in DETAIL_NAMES if values.get(name)}
    rest = {name: value for name, value in values.items() if name not in DETAIL_NAMES}
    return rest | {"details": details} if details else rest
