"""The events of e-mails that ended, which EMAIL_EVENTS publishes."""

from __future__ import annotations

from events.models import DomainEvent
from events.publishing.write import new_event
from notifications.models import EmailNotification
from notifications.states.transitions import Status
from runtime.telemetry import context

#: The topics of the events that EMAIL_EVENTS publishes, by the e-mail's new state.
TOPICS = {
    Status.SENT: "notification.email.sent.v1",
    Status.DEAD_LETTERED: "notification.email.dead_lettered.v1",
}


def end_event(email: EmailNotification, *, attempts: int, provider: str = "") -> DomainEvent:
    """Return the event of an e-mail that became `sent` or a dead letter after so many failed attempts.

    It has the correlation id and the trace of the change that caused the e-mail.
    """
    with context.working_for(context.Context(email.correlation_id, email.traceparent)):
        return new_event(
            aggregate_type="notification",
            aggregate_id=email.id,
            event_type=TOPICS[Status(email.status)],
            # An acceptance counts as one more failure: a dead letter may be sent without a new one.
            sequence=attempts + (email.status == Status.SENT),
            payload={
                "notificationId": str(email.id),
                "orderId": str(email.order_id),
                "eventType": email.event_type,
                "provider": provider,
                **({"shopCopyOf": str(email.shop_copy_of)} if email.shop_copy_of else {}),
            },
        )
