"""The bodies of requests, which are also the data of inbound events."""

from __future__ import annotations

import re
from typing import Any

from drf_spectacular.extensions import OpenApiSerializerExtension
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from notifications.content.rendering import (
    LANGUAGE_TAG,
    LONGEST_TAG,
    currencies,
    is_currency,
    is_locale,
    nearest_locale,
    was_currency,
)
from orders.breakdown import MAX_CHARGES, MAX_ITEMS, find_rest
from orders.details import LONGEST_LINE, LONGEST_NOTE, MOST_LINES, has_card_number, hide_code
from orders.fields import CHARGE_KINDS, DETAIL_NAMES, MAX_AMOUNT
from runtime.texts import one_line
from runtime.time_zones import LONGEST_ZONE, ZONE_NAME, is_zone_name
from web.api.fields import (
    Amount,
    Choice,
    Code,
    EmailAddress,
    Flag,
    Identifier,
    Integer,
    Moment,
    Schema,
    StrictSerializer,
    Text,
    WebAddress,
    cached_serializer,
)

Field = serializers.Field[Any, Any, Any, Any]
Fields = dict[str, Field]
#: The longest text that a customer reads about a cancellation.
MAX_REASON = 500
#: The id of a refund or a parcel. Not an address, because it is kept after an erasure.
FOREIGN_ID = re.compile(r"[^@\x00-\x1f\x7f]{1,100}")


@extend_schema_field({"type": "string", "enum": sorted(currencies())})
class Currency(Text):
    """The ISO 4217 code of a currency in use."""

    def schema(self, is_open: bool) -> Schema:
        return {"type": "string", "pattern": "^[A-Z]{3}$"}  # currencies come and go

    def run_validation(self, data: Any = serializers.empty) -> str:
        value = str(super().run_validation(data))
        if is_currency(value):
            return value
        if is_currency(value.upper()):
            raise serializers.ValidationError(f"Write {value.upper()} in capitals.")
        if was_currency(value):
            raise serializers.ValidationError(
                f"{value} is not in use any more. Use the one that replaced it."
            )
        raise serializers.ValidationError("This is not the ISO 4217 code of a currency in use, such as USD.")


@extend_schema_field({"type": "string", "maxLength": LONGEST_TAG, "pattern": f"^{LANGUAGE_TAG}$"})
class Locale(Text):
    """A language tag, which is stored as it is. The e-mails are in the nearest language that we have."""

    def run_validation(self, data: Any = serializers.empty) -> str:
        value = str(super().run_validation(data))
        if not is_locale(value):
            nearest = nearest_locale(value)
            meant = f"Did you mean {nearest}?" if nearest else ""
            raise serializers.ValidationError(
                f"This is not a language tag, such as en or de-AT. {meant}".rstrip()
            )
        return value


@extend_schema_field({"type": "string", "maxLength": LONGEST_ZONE, "pattern": f"^{ZONE_NAME}$"})
class TimeZone(Text):
    """The IANA name of a time zone."""

    default_error_messages = {"zone": "This is not the IANA name of a time zone, such as Europe/Berlin."}

    def to_internal_value(self, data: Any) -> str:
        value = super().to_internal_value(data)
        if not is_zone_name(value):
            self.fail("zone")
        return value


class CustomerText(Text):
    """A text of a customer as one line, without invisible characters."""

    def to_internal_value(self, data: Any) -> str:
        return one_line(super().to_internal_value(data))


@extend_schema_field(
    {"type": "string", "maxLength": LONGEST_LINE, "pattern": r"^(?!.*[0-9]([^0-9A-Za-z_]{0,2}[0-9]){11})"}
)
class PaymentMethod(CustomerText):
    """The customer's way to pay, without the number of a card or an account."""

    default_error_messages = {
        "number": "Leave out the number of the card or account but its last four digits."
    }

    def to_internal_value(self, data: Any) -> str:
        value = super().to_internal_value(data)
        if has_card_number(value):
            self.fail("number")
        return value


class AddressLines(serializers.ListField):
    """The lines of a postal address."""

    def __init__(self, **options: Any) -> None:
        child = CustomerText(max_length=LONGEST_LINE)
        super().__init__(child=child, min_length=1, max_length=MOST_LINES, **options)


# /api/schema shows the docstrings of these classes.
class ItemBody(StrictSerializer):
    """One line of an order."""

    sku = Text(max_length=100)
    name = Text(max_length=200)
    quantity = Integer(min_value=1, max_value=10**6)
    unit_amount = Amount(min_value=0, max_value=MAX_AMOUNT, help_text="In minor units")
    total_amount = Amount(
        required=False,
        min_value=0,
        max_value=MAX_AMOUNT,
        help_text="What the shop shows for the line, if it is not quantity × unit_amount",
    )


class ChargeBody(StrictSerializer):
    """A part of the total that is no item, such as shipping. A negative amount takes money off."""

    kind = Choice(choices=CHARGE_KINDS)
    label = CustomerText(  # type: ignore[assignment] # the field hides an attribute of DRF's
        required=False,
        allow_blank=True,
        max_length=LONGEST_LINE,
        help_text="Such as VAT 19 %. Of a gift card its code, whose last four characters are kept",
    )
    amount = Amount(min_value=-MAX_AMOUNT, max_value=MAX_AMOUNT, help_text="In minor units")
    included = Flag(
        required=False, help_text="True for a tax that is in the other amounts, and not added to them"
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Leave out what says nothing, so that equal charges are stored as equal."""
        if attrs.get("included") and attrs["kind"] != "tax":
            raise serializers.ValidationError({"included": ["Only a tax can be included."]})
        if attrs["kind"] == "gift_card":
            attrs["label"] = hide_code(attrs.get("label", ""))
        return {name: value for name, value in attrs.items() if value or name == "amount"}


class _ChargeBodyInDocument(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    """The schema of `ChargeBody`, with what `validate` asks. drf-spectacular registers the class."""

    target_class = ChargeBody

    def map_serializer(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        schema = auto_schema._map_serializer(self.target, direction, bypass_extensions=True)
        included = {"properties": {"included": {"const": True}}, "required": ["included"]}
        return {**schema, "if": included, "then": {"properties": {"kind": {"const": "tax"}}}}


class OrderBody(StrictSerializer):
    """An order to place. The total includes shipping and tax. Items and charges, if both are given, give it.

    Without charges, it may differ from the sum of the items.
    """

    user_id: Field = Identifier()  # a fact's are of other classes
    email = EmailAddress()
    name = Text(required=False, allow_blank=True, max_length=200)
    reference = Text(required=False, allow_blank=True, max_length=100, help_text="The shop's own number")
    total_amount = Amount(min_value=1, max_value=MAX_AMOUNT, help_text="In minor units, such as cents")
    currency: Field = Currency(required=False, max_length=3, help_text="ISO 4217; USD if absent")
    locale = Locale(
        required=False,
        max_length=LONGEST_TAG,
        help_text="Language of the e-mails; if absent, that of the shop's profile, or en",
    )
    items = ItemBody(  # type: ignore[call-arg] # the stubs do not know the sizes of lists
        many=True, required=False, max_length=MAX_ITEMS
    )
    charges = ChargeBody(  # type: ignore[call-arg]
        many=True,
        required=False,
        max_length=MAX_CHARGES,
        help_text="Parts of the total that are no items. Together with the items they give the total",
    )
    # The members of the column `details` (orders.fields).
    delivery_address = AddressLines(required=False)
    billing_address = AddressLines(required=False)
    delivery_method = CustomerText(required=False, allow_blank=True, max_length=LONGEST_LINE)
    payment_method = PaymentMethod(required=False, allow_blank=True, max_length=LONGEST_LINE)
    customer_note = CustomerText(required=False, allow_blank=True, max_length=LONGEST_NOTE)
    order_url = WebAddress(required=False, help_text="The order's page in the shop")
    time_zone: Field = TimeZone(
        required=False,
        max_length=LONGEST_ZONE,
        help_text="Of the dates in e-mails: an IANA name. If absent, that of the shop's profile",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        items, charges, total = attrs.get("items"), attrs.get("charges"), attrs["total_amount"]
        if items and charges and (rest := find_rest(items=items, charges=charges, total=total)):
            more = f"{abs(rest)} {'less' if rest > 0 else 'more'}"
            raise serializers.ValidationError(
                {"total_amount": [f"The items and charges give {total - rest}, which is {more}."]}
            )
        return attrs


#: The columns that a shop gives.
GIVEN_COLUMNS = (*(name for name in OrderBody().get_fields() if name not in DETAIL_NAMES), "details")


def longest(name: str, body: type[StrictSerializer] = OrderBody) -> int:
    """Return the length of the longest text of a body's field."""
    text: Any = cached_serializer(body).fields[name]
    return int(text.max_length)


class CompleteBody(StrictSerializer):
    """The address at which the customer can track the parcel, if known."""

    tracking_url = WebAddress(required=False)


#: The longest texts of a parcel's tracking, except its address.
MAX_TRACKING = 100


class ShipmentReference(Code):
    """The shop's or the warehouse's own number of a parcel."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            pattern=FOREIGN_ID,
            wanted="a number or text of at most 100 characters, without @",
            help_text="Your own number of the parcel. It counts once for an order, by whatever way it comes",
            **options,
        )


class LineBody(StrictSerializer):
    """A line of a parcel."""

    item = Integer(min_value=0, max_value=199, help_text="The index of an item of the order, from 0")
    quantity = Integer(min_value=1, max_value=10**6)


class TrackingBody(StrictSerializer):
    """The tracking to correct. A field that is absent stays, and an empty one is emptied."""

    carrier = Text(required=False, allow_blank=True, max_length=MAX_TRACKING)
    tracking_number = Text(required=False, allow_blank=True, max_length=MAX_TRACKING)
    tracking_url = WebAddress(required=False, allow_blank=True)
    notify = Flag(required=False, help_text="True sends the customer the e-mail about the parcel again")


class ShipmentBody(StrictSerializer):
    """A parcel that leaves. Without lines it has all that is left."""

    reference = ShipmentReference(required=False)
    carrier = Text(required=False, max_length=MAX_TRACKING)
    tracking_number = Text(required=False, max_length=MAX_TRACKING)
    tracking_url = WebAddress(required=False)
    shipped_at = Moment(
        required=False, help_text="By default now. Not in the future, nor over a year before the order"
    )

    def get_fields(self) -> Fields:
        options: Any = {"required": False, "allow_empty": False, "max_length": 200}
        return {"lines": LineBody(many=True, **options)} | super().get_fields()


class CancelBody(StrictSerializer):
    """The reason for the cancellation. The customer reads it."""

    reason = Text(
        required=False, allow_blank=True, max_length=MAX_REASON, help_text="For the customer's e-mail"
    )


@extend_schema_field({"type": "string", "pattern": f"^{FOREIGN_ID.pattern}$"})
class RefundId(Code):
    """The payment service's id of a refund."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            pattern=FOREIGN_ID,
            wanted="an id of at most 100 characters, without @",
            help_text="Of the payment service. It counts once for an order, by whatever way it comes",
            **options,
        )


class RefundBody(StrictSerializer):
    """The amount to refund, by default the whole balance."""

    amount = Amount(required=False, min_value=1, max_value=MAX_AMOUNT, help_text="In minor units")
    refund_id = RefundId(required=False)
