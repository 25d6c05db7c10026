"""Signed events of every provider about an e-mail, as its documentation shows them, posted to its webhook."""

from __future__ import annotations

import base64
import datetime as dt
import json
import secrets
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from django.test import Client

from notifications.providers.mailgun.sandbox import signature
from tests.kit.words import EmailNotification, declarations, make_key, message_id, sign

#: Every provider that posts events.
TELLERS = [name for name, declared in declarations().items() if declared.webhook]
_SENDGRID = make_key()
_MAILGUN = "key-of-mailgun"
_SVIX = "whsec_" + base64.b64encode(b"a secret of resend").decode()
_LOGIN = "teller:secret"


@pytest.fixture
def tellers(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure every provider with the keys that verify these posts. Believe the signatures of SNS."""
    settings.EMAIL_PROVIDERS = list(declarations())
    settings.SENDGRID_WEBHOOK_VERIFICATION_KEY = _SENDGRID[1]
    settings.MAILGUN_WEBHOOK_SIGNING_KEY = _MAILGUN
    settings.RESEND_WEBHOOK_SECRET = _SVIX
    settings.WEBHOOK_BASIC_AUTH = settings.POSTMARK_WEBHOOK_BASIC_AUTH = _LOGIN
    monkeypatch.setattr("notifications.providers.ses.sns.verify", lambda message: None)


def tell(
    provider: str,
    kind: str,
    *,
    mail: EmailNotification | uuid.UUID | None = None,
    accepted_as: str = "",
    header_of: EmailNotification | None = None,
    recipient: str = "alice@example.com",
    metadata: Mapping[str, str] | None = None,
    edit: Callable[[dict[str, Any]], None] = lambda event: None,
) -> int:
    """Post an event and return the answer's status. `kind` is `delivered`, `bounce` or `complaint`.

    The event names `mail` in its metadata, the id under which the provider accepted an e-mail, and the
    Message-ID of `header_of`. What is not given is not in it. `edit` changes the event before it is signed.
    """
    if mail is not None:
        id = mail.id if isinstance(mail, EmailNotification) else mail
        metadata = {"notification_id": str(id), "order_id": "x", "event_type": "order.paid"}
    header = message_id(header_of) if header_of else ""
    made = _EVENTS[provider](kind, accepted_as, header, recipient, metadata)
    edit(made)
    body, headers = _POSTS[provider](made)
    kind_of_body = "text/plain" if provider == "ses" else "application/json"
    return Client().post(f"/webhooks/{provider}", body, kind_of_body, headers=headers).status_code


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat().replace("+00:00", "Z")


def _of_sendgrid(kind: str, accepted_as: str, header: str, recipient: str, metadata: Any) -> dict[str, Any]:
    names = {"delivered": "delivered", "bounce": "bounce", "complaint": "spamreport"}
    event = {"event": names[kind], "email": recipient, "timestamp": int(time.time())}
    event |= {"sg_event_id": secrets.token_hex(8), **(metadata or {})}
    event |= {"type": "bounce", "status": "5.1.1", "ip": "127.0.0.1"} if kind == "bounce" else {}
    event |= {"bounce_classification": "Invalid Address"} if kind == "bounce" else {}
    event |= {"sg_message_id": f"{accepted_as}.filter0001.16648.0"} if accepted_as else {}
    return event | ({"smtp-id": header} if header else {})


def _of_postmark(kind: str, accepted_as: str, header: str, recipient: str, metadata: Any) -> dict[str, Any]:
    event: dict[str, Any] = {"MessageID": accepted_as} if accepted_as else {}
    event |= {"Metadata": metadata} if metadata else {}
    if kind == "delivered":
        return event | {"RecordType": "Delivery", "Recipient": recipient, "DeliveredAt": _now()}
    event |= {"ID": 7, "Email": recipient, "BouncedAt": _now(), "Inactive": True}
    if kind == "bounce":
        return event | {"RecordType": "Bounce", "Type": "HardBounce", "TypeCode": 1}
    return event | {"RecordType": "SpamComplaint", "Type": "SpamComplaint", "TypeCode": 512}


def _of_mailgun(kind: str, accepted_as: str, header: str, recipient: str, metadata: Any) -> dict[str, Any]:
    names = {"delivered": "delivered", "bounce": "failed", "complaint": "complained"}
    event: dict[str, Any] = {"event": names[kind], "timestamp": time.time(), "recipient": recipient}
    event |= {"severity": "permanent", "reason": "bounce"} if kind == "bounce" else {}
    event |= {"delivery-status": {"code": 550, "bounce-type": "hard"}} if kind == "bounce" else {}
    named = (accepted_as or header).strip("<>")
    event |= {"message": {"headers": {"message-id": named}}} if named else {}
    return event | ({"user-variables": metadata} if metadata else {})


def _of_resend(kind: str, accepted_as: str, header: str, recipient: str, metadata: Any) -> dict[str, Any]:
    names = {"delivered": "delivered", "bounce": "bounced", "complaint": "complained"}
    data: dict[str, Any] = {"to": [recipient]} | ({"email_id": accepted_as} if accepted_as else {})
    data |= {"headers": [{"name": "Message-ID", "value": header}]} if header else {}
    data |= {"bounce": {"type": "Permanent", "subType": "General", "message": "gone"}}
    data |= {"tags": metadata} if metadata else {}
    return {"type": f"email.{names[kind]}", "created_at": _now(), "data": data}


def _of_ses(kind: str, accepted_as: str, header: str, recipient: str, metadata: Any) -> dict[str, Any]:
    mail: dict[str, Any] = {"destination": [recipient], "tags": {"ses:caller-identity": ["shop"]}}
    mail |= {"messageId": accepted_as} if accepted_as else {}
    mail |= {"commonHeaders": {"messageId": header}} if header else {}
    mail |= {"headers": [{"name": "X-Metadata", "value": json.dumps(metadata)}]} if metadata else {}
    if kind == "delivered":
        return {"eventType": "Delivery", "mail": mail, "delivery": {"recipients": [recipient]}}
    if kind == "bounce":
        told = {"bounceType": "Permanent", "bounceSubType": "General"}
        told |= {"bouncedRecipients": [{"emailAddress": recipient, "status": "5.1.1"}]}  # type: ignore[dict-item]
        return {"eventType": "Bounce", "mail": mail, "bounce": told}
    complained = {"complainedRecipients": [{"emailAddress": recipient}]}
    return {"eventType": "Complaint", "mail": mail, "complaint": complained}


_EVENTS = {
    "sendgrid": _of_sendgrid,
    "postmark": _of_postmark,
    "mailgun": _of_mailgun,
    "resend": _of_resend,
    "ses": _of_ses,
}
Post = tuple[bytes, Mapping[str, str]]


def _post_of_sendgrid(event: Any) -> Post:
    body, at = json.dumps([event]).encode(), str(int(time.time()))
    signed = sign(at.encode() + body, key=_SENDGRID[0])
    name = "X-Twilio-Email-Event-Webhook"
    return body, {f"{name}-Timestamp": at, f"{name}-Signature": signed}


def _post_of_postmark(event: Any) -> Post:
    return json.dumps(event).encode(), _login()


def _post_of_mailgun(event: Any) -> Post:
    signed = signature(_MAILGUN, timestamp=str(int(time.time())), token=secrets.token_hex(25))
    return json.dumps({"signature": signed, "event-data": event}).encode(), {}


def _post_of_resend(event: Any) -> Post:
    from svix.webhooks import Webhook as Svix  # takes most of a second

    body, at = json.dumps(event), dt.datetime.now(dt.UTC)
    signed = Svix(_SVIX).sign("msg_1", at, body)
    stamp = str(int(at.timestamp()))
    return body.encode(), {"svix-id": "msg_1", "svix-timestamp": stamp, "svix-signature": signed}


def _post_of_ses(event: Any) -> Post:
    message = {"Type": "Notification", "MessageId": "n-1", "Timestamp": _now(), "Message": json.dumps(event)}
    kind = {"x-amz-sns-message-type": "Notification", "x-amz-sns-message-id": "n-1"}
    return json.dumps(message).encode(), kind | _login()


def _login() -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(_LOGIN.encode()).decode()}


_POSTS: dict[str, Callable[[Any], Post]] = {
    "sendgrid": _post_of_sendgrid,
    "postmark": _post_of_postmark,
    "mailgun": _post_of_mailgun,
    "resend": _post_of_resend,
    "ses": _post_of_ses,
}
