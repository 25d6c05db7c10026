"""Events of SendGrid about an e-mail, posted to the webhook."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

from django.test import Client

from tests.kit.mails import make_mail
from tests.kit.words import EmailNotification

URL = "/webhooks/sendgrid"


def offered_mail(**fields: Any) -> EmailNotification:
    """Insert an e-mail that was offered to SendGrid, so that SendGrid's events about it count."""
    return make_mail(**{"provider": "sendgrid"} | fields)


def event(mail: Any, kind: str, **more: Any) -> dict[str, Any]:
    """Return an event as SendGrid documents it. `mail` is an e-mail or its id."""
    id = str(mail.id) if isinstance(mail, EmailNotification) else mail
    return {
        "email": "alice@example.com",
        "timestamp": int(time.time()),
        "event": kind,
        "sg_event_id": str(uuid.uuid4()),
        "sg_message_id": "14c5d75ce93.dfd.64b469.filter0001.16648.5515E0B88.0",
        "notification_id": id,
        "order_id": "x",
        "event_type": "order.paid",
    } | more


def post(events: Any, url: str = URL, **headers: str):
    body = events if isinstance(events, bytes) else json.dumps(events).encode()
    return Client().post(url, body, "application/json", headers=headers)
