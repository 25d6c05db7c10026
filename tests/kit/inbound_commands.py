"""Commands of other services, as events."""

from __future__ import annotations

from typing import Any

from tests.kit.events import envelope, handle, received
from tests.kit.words import (
    InboundDeadLetter,
)

PLACE, COMPLETE, CANCEL = (f"order.command.{verb}_order.v1" for verb in ("place", "complete", "cancel"))
RESEND = "notification.command.resend_error_emails.v1"
CLEAN_UP = "notification.command.clean_up_sent_emails.v1"


def give(topic: str, **data: Any) -> str:
    return handle(received(topic, envelope(topic, data)))


def reason() -> str:
    return InboundDeadLetter.objects.get().error
