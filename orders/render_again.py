"""Replace e-mails that a mistake in a template spoiled by copies that are rendered again.

A copy shows the order and its recipient as they are now, and the change as its event recorded it.
"""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from events.models import DomainEvent
from notifications.changes.manual_actions import Refusal
from notifications.content.copies import add_copy
from notifications.content.profiles import find_profile
from notifications.content.render_files import RenderedEmail
from notifications.content.rendering import TemplateFailed, render_email
from notifications.log import EmailChange
from notifications.models import EmailNotification
from notifications.services import give_up
from notifications.states.transitions import EndedBy
from notifications.suppressions import suppressed_among
from orders.emails import PRIVATE_DETAILS, email_context, fulfilment_before, is_private
from orders.events import EVENTS
from orders.models import Order, Shipment
from orders.parcels import compute_fulfilment, read_shipments, shown
from runtime.database.ids import id_floor
from runtime.database.transactions import require_transaction
from runtime.personal_data import ERASED_ADDRESS

#: The e-mails that show values which only the event has.
NEED_EVENT = {"order.completed", "order.cancelled", "order.refunded", "order.part_refunded"}
#: The e-mails about a shipment. A corrected number sends the first of them again, about another event.
OF_SHIPMENTS = {"order.shipped", "order.delivered"}
CORRECTED = EVENTS["order.shipment_updated"].topic
COLUMNS = (
    *("order", "event_type", "recipient_email", "resend_of", "order_version", "created_at"),
    *("ended_by", "shop_copy_of", "customer_email"),
)
#: Ids and times of one statement differ by less.
NEAR = dt.timedelta(days=1)


class Replaced(NamedTuple):
    """The change of an e-mail that was given up, and the id of its copy."""

    change: EmailChange
    copy_id: uuid.UUID


class First(NamedTuple):
    """The e-mail that was written with its change: `email` itself, or the one of which it is a copy."""

    created_at: dt.datetime
    recipient_email: str
    customer_email: str  # of a shop copy; otherwise the recipient's
    event: tuple[uuid.UUID, int]  # the order, and its version


#: The stored data of an event, and its topic as `TOPIC`.
Payload = Mapping[str, Any]
TOPIC = "topic"


class NotRendered(Exception):
    """An e-mail cannot be rendered again. The text says why."""


def render_again(*, ids: Iterable[uuid.UUID]) -> tuple[list[Replaced], list[Refusal]]:
    """Give up unsent e-mails, and insert a new copy of each, in the caller's transaction.

    Refuse an e-mail that is held, that may have been sent before a restore, whose recipient was erased or is
    suppressed, or whose content cannot be restored.
    """
    require_transaction("a new rendering")
    wanted = list(ids)
    rows = EmailNotification.objects.filter(id__in=wanted)
    # Changes, corrections and erasures of these orders wait until the copies are committed.
    order_ids = set(rows.values_list("order_id", flat=True))
    locked = Order.objects.filter(id__in=order_ids).order_by("id").select_for_update()
    orders = {order.id: order for order in locked}
    emails = list(rows.only(*COLUMNS).order_by("id"))
    firsts = _firsts(emails)
    payloads = _payloads(firsts.values())
    shipments: defaultdict[uuid.UUID, list[Shipment]] = defaultdict(list)
    for shipment in Shipment.objects.filter(order_id__in=order_ids).order_by("id"):
        shipments[shipment.order_id].append(shipment)
    contents: dict[uuid.UUID, RenderedEmail] = {}
    refusals: list[Refusal] = []
    for email in emails:
        try:
            order, first = orders.get(email.order_id), firsts.get(email.id)
            contents[email.id] = _render(email, order, first, payloads, shipments[email.order_id])
        except NotRendered as error:
            refusals.append(Refusal(email.id, str(error)))
    rendered = {email.id: email for email in emails if email.id in contents}
    for id, why in suppressed_among(list(rendered.values())).items():
        del rendered[id]
        refusals.append(Refusal(id, f"its address is suppressed: {why}"))
    missing = {*wanted} - {email.id for email in emails}
    changes, more = give_up(ids=[*rendered, *missing])  # which refuses those that are missing
    done = [
        Replaced(change, add_copy(rendered[change.id], content=contents[change.id])) for change in changes
    ]
    return done, refusals + more


def render_public(email: EmailNotification, order: Order) -> RenderedEmail:
    """Render an e-mail without what only its order's address may get. The order is locked, and as it is now.

    An e-mail whose event is not stored here has no tracking link. Raise `NotRendered`.
    """
    stored = EmailNotification.objects.only(*COLUMNS).get(id=email.id)
    order = copy.copy(order)
    order.details = {name: value for name, value in order.details.items() if name not in PRIVATE_DETAILS}
    change: Mapping[str, object] = {"at": stored.created_at}
    if (first := _firsts([stored]).get(email.id)) is not None:
        payload = _payloads([first]).get(first.event)
        with contextlib.suppress(NotRendered):
            change = _change(stored, order, first, payload, read_shipments(order))
    return _render_stored(email, order, change)


def _firsts(emails: Sequence[EmailNotification]) -> dict[uuid.UUID, First]:
    """Return the first of each e-mail whose copies are all stored."""
    firsts, wanted = {}, {email.id: email for email in emails}
    while wanted:
        copies = {}
        for id, email in wanted.items():
            if email.resend_of is not None:
                copies[id] = email.resend_of
            elif email.order_version is not None and email.event_type in EVENTS:
                key = email.order_id, email.order_version
                firsts[id] = First(email.created_at, email.recipient_email, _customer(email), key)
        parents = EmailNotification.objects.only(*COLUMNS).in_bulk(list(copies.values()))
        wanted = {id: parents[parent] for id, parent in copies.items() if parent in parents}
    return firsts


def _payloads(firsts: Iterable[First]) -> dict[tuple[uuid.UUID, int], Payload]:
    """Return the stored data of the changes' events."""
    times = [first.created_at for first in firsts]
    if not times:
        return {}
    rows = DomainEvent.objects.filter(
        id__gte=id_floor(min(times) - NEAR),
        id__lt=id_floor(max(times) + NEAR),
        aggregate_type="order",
        aggregate_id__in={first.event[0] for first in firsts},
    )
    return {
        (order_id, sequence): {**payload, TOPIC: topic}
        for order_id, topic, sequence, payload in rows.values_list(
            "aggregate_id", "event_type", "sequence", "payload"
        )
    }


def _change(
    email: EmailNotification,
    order: Order,
    first: First,
    payload: Payload | None,
    shipments: Sequence[Shipment],
) -> dict[str, object]:
    """Return the e-mail's change (see `email_context`), and give `order` its refunds of then.

    Raise `NotRendered` if what has the change's data is not stored here.
    """
    is_needed = email.event_type in NEED_EVENT
    shipment = None
    if email.event_type in OF_SHIPMENTS:
        # The row of another system's shipment has the sequence of the newest event about it.
        name, value = ("id", uuid.UUID(payload["shipmentId"])) if payload else ("sequence", first.event[1])
        shipment = next((other for other in shipments if getattr(other, name) == value), None)
        is_needed = shipment is None
    if payload is None and is_needed:
        raise NotRendered(
            f"only {order.source or 'its event'}, which is not stored here, has the change's data"
        )
    payload = payload or {}
    if email.event_type == "order.cancelled" and payload["hasReason"]:
        raise NotRendered("only the e-mail has the reason of the cancellation")
    if payload or shipment is None:
        order.refunded_amount = payload.get("refundedAmount", 0)  # no event of a refund, so none was made
    change = {
        "at": first.created_at,
        "amount": payload.get("amount"),
        "tracking_url": payload.get("trackingUrl", ""),
        "was_paid": payload.get("wasPaid", False),
    }
    if shipment is not None:
        change |= shown(email.event_type, order, shipment, shipments)
        if payload.get(TOPIC) == CORRECTED:
            change |= {"at": first.created_at, "corrected": True}
    elif email.event_type == "order.completed":
        before = copy.copy(order)
        before.completed_at = None
        sent = [other for other in shipments if other.shipped_at and other.shipped_at <= first.created_at]
        change |= fulfilment_before(compute_fulfilment(before, sent))
    return change


def _customer(email: EmailNotification) -> str:
    """Return the address of the person whose order the e-mail shows."""
    return email.customer_email or email.recipient_email


def _render(
    email: EmailNotification,
    order: Order | None,
    first: First | None,
    payloads: Mapping[tuple[uuid.UUID, int], Payload],
    shipments: Sequence[Shipment],
) -> RenderedEmail:
    """Render the e-mail, and give `email` the order's recipient. Raise as `_render_stored` does."""
    if email.recipient_email == ERASED_ADDRESS:
        raise NotRendered("its data was erased")
    if email.ended_by == EndedBy.RESTORE:
        raise NotRendered("it may have been sent before the restore, so resend it or mark it as sent")
    if order is None or first is None:
        raise NotRendered("its order or its first e-mail is not stored any more")
    is_elsewhere = email.recipient_email != first.recipient_email if email.shop_copy_of else False
    if is_elsewhere or _customer(email) not in (first.customer_email, order.email):
        raise NotRendered("a person sent this copy to another address")
    if email.event_type == "order.payment_failed" and order.status != Order.Status.PENDING:
        raise NotRendered(f"its order is {order.status}, so nobody has to pay again")
    order = copy.copy(order)  # other e-mails of the order may be older or newer
    change = _change(email, order, first, payloads.get(first.event), shipments)
    if not order.email and not email.shop_copy_of:
        raise NotRendered("its order has no usable address")
    if email.shop_copy_of:  # it goes to the shop again
        email.customer_email, email.to_name = order.email, ""
    else:
        email.recipient_email, email.to_name = order.email, order.name
    email.locale = order.locale
    return _render_stored(email, order, change)


def _render_stored(email: EmailNotification, order: Order, change: Mapping[str, object]) -> RenderedEmail:
    """Render the e-mail, and give it the sender of the order's shop. Raise `NotRendered`."""
    try:
        context = email_context(order=order, event_type=email.event_type, change=change)
        email.is_private = is_private(order, email.event_type)
        profile = find_profile(order.source)
        email.profile, email.from_email, email.reply_to = profile.source, profile.from_email, profile.reply_to
        return render_email(
            event_type=email.event_type, locale=email.locale, context=context, profile=profile
        )
    except TemplateFailed as error:
        raise NotRendered(str(error)) from error
    except Exception as error:  # the text may have a customer's data
        raise NotRendered(f"its template fails: {type(error).__name__}") from error
