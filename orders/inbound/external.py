"""Orders that another system owns. Its events create and change them here, and cause the same e-mails.

Each event has the whole order after the change, and `metadata.sequence`, the order's version in that system.
The event with the highest sequence decides the order's state. An event that arrives after a later one
(overtaken) changes only the order's times, and still sends its e-mail. docs/start/connect.md has a table of
the arrivals.
"""

from __future__ import annotations

import datetime as dt
import functools
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from django.conf import settings
from django.utils import timezone
from rest_framework import serializers

from events.consuming.envelope import Envelope, Rejected
from events.counters import FALLBACKS_USED
from notifications import connected
from notifications.services import erase_unaddressed, readdress
from orders import services, shipments
from orders.bodies import CancelBody, ChargeBody, CompleteBody, ItemBody, OrderBody
from orders.breakdown import as_stored
from orders.emails import default_locale
from orders.events import EVENTS
from orders.fields import MAX_AMOUNT, pack_details
from orders.inbound.fallbacks import FactBody, use_fallbacks
from orders.inbound.fulfilment import ParcelData
from orders.inbound.reading import CURRENCY_FORM, InboundTopic, read_data
from orders.models import Order
from orders.parcels import SHIPPABLE
from orders.services import OrderChange
from orders.transitions import ChangeRefused
from runtime.database.ids import parse_uuid
from runtime.database.transactions import after_commit
from runtime.personal_data import ERASED_ADDRESS
from runtime.telemetry import context
from runtime.time_zones import LONGEST_ZONE, find_zone
from web.api.fields import Amount, Choice, Code, Flag, Moment, Text

S = Order.Status
LARGEST_SEQUENCE = 2**31 - 1


#: The refunded amount that an order can have in each status. In the others it is 0.
REFUNDED: dict[str, str] = {
    S.CANCELLED: "at most the total",
    S.PART_REFUNDED: "more than 0 and less than the total",
    S.REFUNDED: "the total",
}


class OwnedElsewhere(Rejected):
    """The order belongs to another system. The text names it, and not every sender may read that."""


class ReportedZone(Text):
    """The time zone of an order: an IANA name, or the offset of its day."""

    default_error_messages = {
        "zone": "This is neither the IANA name of a time zone, such as Europe/Berlin, nor an offset."
    }

    def to_internal_value(self, data: Any) -> str:
        value = super().to_internal_value(data)
        if find_zone(value) is None:
            self.fail("zone")
        return value


class FactItem(ItemBody):
    """One line of the order. One that takes money off becomes a discount."""

    unit_amount = Amount(min_value=-MAX_AMOUNT, max_value=MAX_AMOUNT, help_text="In minor units")
    total_amount = Amount(
        required=False,
        min_value=-MAX_AMOUNT,
        max_value=MAX_AMOUNT,
        help_text="What the shop shows for the line, if it is not quantity × unitAmount",
    )


class ExternalOrder(FactBody, OrderBody):
    """The order after the change."""

    items = FactItem(
        many=True, required=False, help_text="Beyond 200, the rest becomes one item with its sum"
    )
    charges = ChargeBody(
        many=True, required=False, help_text="Beyond 20, the rest becomes one charge with its sum"
    )
    order_id = Text(max_length=100, help_text="Any text. A UUID becomes the order's id here")
    user_id = Text(max_length=100, help_text="Any text, such as a UUID")
    status = Choice(choices=S.choices)
    total_amount = Amount(min_value=0, max_value=MAX_AMOUNT, help_text="In minor units, such as cents")
    # Money of a currency that is no longer in use is money, too.
    currency = Code(
        pattern=CURRENCY_FORM,
        required=False,
        wanted="three capital letters, such as USD",
        help_text="ISO 4217; USD if absent",
    )
    time_zone = ReportedZone(
        required=False,
        max_length=LONGEST_ZONE,
        help_text="Of the dates in e-mails: an IANA name or an offset. If absent, that of the shop's profile",
    )
    refunded_amount = Amount(
        required=False, min_value=0, max_value=MAX_AMOUNT, default=0, help_text="In minor units; 0 if absent"
    )
    placed_at = Moment(help_text="When the customer placed the order")
    notify = Flag(
        required=False,
        default=True,
        help_text="True if absent. False stores the order without an e-mail, for history",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse a refunded amount that does not fit the status, as the table's constraints do."""
        refunded, total, status = attrs["refunded_amount"], attrs["total_amount"], attrs["status"]
        fits = {S.CANCELLED: refunded <= total, S.PART_REFUNDED: 0 < refunded < total}
        fits[S.REFUNDED] = refunded == total
        if not fits.get(status, refunded == 0):
            raise serializers.ValidationError(
                {
                    "refunded_amount": [
                        f"For an order that is {status}, this must be {REFUNDED.get(status, '0')}."
                    ]
                }
            )
        return attrs


class Completed(ExternalOrder, CompleteBody):
    pass


class Cancelled(ExternalOrder, CancelBody):
    was_paid = Flag()


class Refund(ExternalOrder):
    refunded_amount = Amount(
        min_value=0, max_value=MAX_AMOUNT, help_text="In minor units, including this refund"
    )
    amount = Amount(min_value=0, max_value=MAX_AMOUNT, help_text="In minor units, of this refund")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse an amount above the refunded amount: the e-mail shows both."""
        attrs = super().validate(attrs)
        if attrs["amount"] > attrs["refunded_amount"]:
            raise serializers.ValidationError(
                {"amount": ["This must be at most refundedAmount, which includes this refund."]}
            )
        return attrs


class ReportedParcel(ParcelData):
    """A parcel as it is after the change."""

    delivered_at = Moment(required=False)
    returned_at = Moment(required=False)


class Shipped(ExternalOrder):
    shipment = ReportedParcel()


#: Fields of the change, not of the order. The event's e-mail shows them.
OF_CHANGE = ("amount", "notify", "reason", "shipment", "tracking_url", "was_paid")


class ReportedEvent(NamedTuple):
    """An event of another system: its body, and the statuses that an order can have after it."""

    body: type[ExternalOrder]
    statuses: tuple[S, ...]
    title: str


#: The statuses are those of our own events.
BODIES = {
    "order.placed": ReportedEvent(ExternalOrder, (S.PENDING,), "An order of another system was placed"),
    "order.paid": ReportedEvent(ExternalOrder, (S.PAID,), "An order of another system was paid"),
    "order.confirmed": ReportedEvent(
        ExternalOrder,
        (S.CONFIRMED,),
        "An order of another system was confirmed because its stock is reserved",
    ),
    "order.completed": ReportedEvent(
        Completed,
        (S.COMPLETED, S.PART_REFUNDED),
        "An order of another system was completed. A part-refunded order keeps its status",
    ),
    "order.shipped": ReportedEvent(
        Shipped,
        SHIPPABLE,
        "A parcel of an order of another system left, was delivered, came back, or was corrected",
    ),
    "order.cancelled": ReportedEvent(Cancelled, (S.CANCELLED,), "An order of another system was cancelled"),
    "order.refunded": ReportedEvent(
        Refund,
        (S.REFUNDED, S.CANCELLED),
        "The whole balance of an order of another system was refunded",
    ),
    "order.part_refunded": ReportedEvent(
        Refund, (S.PART_REFUNDED, S.CANCELLED), "A part of an order of another system was refunded"
    ),
}


def our_id(*, source: str, id: str) -> uuid.UUID:
    """Return our id for another system's id: the same id if it is a UUID, or else a UUIDv5 of it.

    A UUIDv5 is hashed again. Otherwise one system could compute the id of another system's order and use it
    first.

    >>> our_id(source="shop-a", id="A-1001")
    UUID('818375b7-e7f5-5eff-a7ef-46bead490c2f')
    """
    own = parse_uuid(id)
    if own is not None and own.int and own.version != 5:
        return own
    return uuid.uuid5(uuid.uuid5(uuid.NAMESPACE_URL, f"urn:orderpost:source:{source}"), id)


def apply_report(event: Envelope, *, name: str) -> None:
    """Handle the event `name` of another system. An event with `notify: false` sends no e-mail."""
    source, shop = event.producer, None
    is_listed = source in settings.ORDER_SOURCES
    if not is_listed or connected.has_name(source):
        shop = connected.find_shop(source)
        if shop is None and not is_listed:
            raise Rejected(
                f"its producer {source[:100]!r} is not in ORDER_SOURCES: add it for all processes, restart"
                " them, and then replay the event or send it again"
            )
    reported, report = _read(event, name)
    parcel = report.pop("shipment", None)
    if shop is not None:
        report["withheld"] = shop.withheld(event.timestamp or timezone.now())
        if (link := reported.details.get("order_url")) and not shop.has_host(link):
            del reported.details["order_url"]
            report["warnings"].append("orderUrl: It leads to another host than the shop's. It was left out.")
    try:
        change = save_reported(reported=reported, event=name, at=event.timestamp, parcel=parcel, **report)
    except services.OtherOwner as error:
        raise OwnedElsewhere(str(error)) from error
    except ChangeRefused as error:
        raise Rejected(str(error)) from error
    event.effects.warnings += change.warnings
    event.effects.why_withheld = change.why_withheld


def save_reported(
    *,
    reported: Order,
    event: str,
    at: dt.datetime | None,
    is_history: bool,
    parcel: Mapping[str, Any] | None = None,
    doubts: Sequence[str] = (),
    **report: Any,
) -> OrderChange:
    """Take over the state of another system's order, and of its `parcel`, and save it with its e-mails.

    The order's timeline shows the `doubts`. The other arguments are those of `apply_reported_state`.
    """
    change = services.apply_reported_state(
        reported=reported, event=event, at=at, is_history=is_history, sends_email=parcel is None, **report
    )
    if parcel is not None:
        shipments.report(change, reported=reported, at=at, is_history=is_history, **parcel)
    for doubt in doubts:
        change.warn(doubt)
    change.save()
    if change.has_new_address:
        if change.order.email == ERASED_ADDRESS:
            erase_unaddressed(order_id=change.order.id)
        else:
            readdress(order_id=change.order.id, recipient_email=change.order.email, to_name=change.order.name)
    after_commit(lambda: _count(change.warnings))
    return change


def _count(warnings: Iterable[str]) -> None:
    for warning in warnings:
        FALLBACKS_USED.labels(warning.partition(":")[0]).inc()


def _read(event: Envelope, name: str) -> tuple[Order, dict[str, Any]]:
    """Return the event's order, unsaved, and the other arguments of `apply_reported_state`.

    Raise `Rejected`.
    """
    source = event.producer
    sequence = event.metadata.get("sequence")
    if type(sequence) is not int or not 1 <= sequence <= LARGEST_SEQUENCE:
        raise Rejected(f"its metadata.sequence is not a whole number from 1 to {LARGEST_SEQUENCE}")
    body, statuses, _ = BODIES[name]
    values, warnings = use_fallbacks(read_data(body, event.data, strict=False))
    if values["status"] not in statuses:
        raise Rejected(f"data.status: After this event an order is {' or '.join(statuses)}.")
    report = {key: values.pop(key) for key in OF_CHANGE if key in values}
    stored = as_stored(values.get("items", []), values.get("charges", []))
    values |= {"items": stored.items, "charges": stored.charges}
    values = pack_details(values)
    foreign_id, work = values.pop("order_id"), context.current()
    id = our_id(source=source, id=foreign_id)
    user_id = values.pop("user_id", None)
    values["user_id"] = uuid.uuid5(id, source) if user_id is None else our_id(source=source, id=user_id)
    if str(id) != foreign_id.lower():
        values.setdefault("reference", foreign_id)
    values.setdefault("locale", default_locale(source=source))
    report["placed_at"] = values.pop("placed_at", None)
    report["is_history"] = not report.pop("notify")
    if "shipment" in report:
        parcel = report["shipment"]
        report["shipment"], more = use_fallbacks(parcel)
        if "lines" in report["shipment"]:
            report["shipment"]["lines"] = stored.move_lines(report["shipment"]["lines"])
        warnings += [f"shipment.{warning}" for warning in more]
        for name in parcel.keys() & {"delivered_at", "returned_at"} - report["shipment"].keys():
            report["shipment"][name] = event.timestamp or timezone.now()
    report["warnings"] = warnings
    order = Order(
        id=id,
        source=source,
        version=sequence,
        correlation_id=work.correlation_id,
        traceparent=work.traceparent,
        **values,
    )
    return order, report


#: The topic of a parcel of our own orders has another payload.
SHIPPED = "order.order.shipped.v1"
TOPICS = {
    SHIPPED if name == "order.shipped" else EVENTS[name].topic: InboundTopic(
        functools.partial(apply_report, name=name), body, title, statuses
    )
    for name, (body, statuses, title) in BODIES.items()
}
