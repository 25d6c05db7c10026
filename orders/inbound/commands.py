"""Commands that other services send as events.

Each handler calls what the API, the admin or a management command calls, in the transaction that records the
event. A command has its effect once for each event id, and one that the API would refuse becomes an inbound
dead letter.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import structlog
from rest_framework import serializers

from events.consuming.envelope import Envelope
from notifications.services import act_on_resend, resend, resend_dead_letters
from orders import services
from orders.bodies import CancelBody, CompleteBody, OrderBody
from orders.inbound.reading import InboundTopic, read_data, refusals_as_rejections
from orders.services import OrderChange
from retention import rollover
from runtime.audit import Actor, record
from runtime.database.clock import read_database_time
from runtime.database.transactions import after_commit
from web.api.fields import Identifier, Nothing, StrictSerializer

log = structlog.get_logger(__name__)

MOST_NAMED = 500


class CompleteCommand(CompleteBody):
    order_id = Identifier()


class CancelCommand(CancelBody):
    order_id = Identifier()


class ResendCommand(StrictSerializer):
    """The ids of the e-mails to resend. If there are none, all dead letters are resent."""

    notification_ids = serializers.ListField(
        child=Identifier(), required=False, min_length=1, max_length=MOST_NAMED
    )


def place_order(event: Envelope) -> None:
    """Place an order. Its event `order.order.placed.v1` has the command's correlation id."""
    services.place(now=read_database_time(), **_read(OrderBody, event)).save()


def resend_error_emails(event: Envelope) -> None:
    """Resend the named e-mails, or all dead letters. Skip held e-mails and suppressed addresses.

    If none are named, also skip the dead letters that a restore of the database made, and overtaken ones.
    """
    ids: list[uuid.UUID] | None = _read(ResendCommand, event).get("notification_ids")
    by = Actor(f"{event.producer} (event {event.id})")
    if ids is None:
        changed, refused = resend_dead_letters(by=by)
    else:
        changes, refusals = resend(ids=ids)
        record(*(act_on_resend(change) for change in changes), by=by)
        changed, refused = len(changes), len(refusals)
    after_commit(
        lambda: log.info("e-mails resent by a command", source=event.producer, count=changed, refused=refused)
    )


def clean_up_sent_emails(event: Envelope) -> None:
    """Have `keep_partitions` archive and drop old partitions within a minute."""
    _read(Nothing, event)
    rollover.request()


def _read(body: type[StrictSerializer], event: Envelope) -> dict[str, Any]:
    return read_data(body, event.data, strict=True)


def _change_order(
    service: Callable[..., OrderChange], body: type[StrictSerializer], title: str
) -> InboundTopic:
    """Return the topic of a command that has its order changed with the values of `body`."""

    def handle(event: Envelope) -> None:
        values = _read(body, event)
        with refusals_as_rejections():
            service(**values).save()

    return InboundTopic(handle, body, title)


TOPICS = {
    "order.command.place_order.v1": InboundTopic(
        place_order, OrderBody, "Place an order, as POST /api/v1/orders does"
    ),
    "order.command.complete_order.v1": _change_order(
        services.complete, CompleteCommand, "Complete an order, as POST /api/v1/orders/{id}/complete does"
    ),
    "order.command.cancel_order.v1": _change_order(
        services.cancel, CancelCommand, "Cancel an order, as POST /api/v1/orders/{id}/cancel does"
    ),
    "notification.command.resend_error_emails.v1": InboundTopic(
        resend_error_emails, ResendCommand, "Resend the named e-mails, or all dead letters"
    ),
    "notification.command.clean_up_sent_emails.v1": InboundTopic(
        clean_up_sent_emails, Nothing, "Archive and drop old partitions, as the daily rollover does"
    ),
}
