"""Each provider's signature: what it covers, how old it may be, what a forged one changes (nothing)."""

from __future__ import annotations

import base64
import datetime as dt
import json
import time
from typing import Any

import pytest
from django.test import Client
from svix.webhooks import Webhook as Svix

from notifications.models import EmailNotification
from notifications.providers.registry import declarations
from notifications.providers.sendgrid import make_key
from notifications.providers.sendgrid.sandbox import sign
from outbox.delivery.outcomes import Status
from tests.factories import make_mail

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _configured(settings):
    settings.EMAIL_PROVIDERS = list(declarations())


@pytest.fixture(scope="module")
def key() -> tuple[str, str]:
    return make_key()


def fresh(mail: EmailNotification) -> EmailNotification:
    return EmailNotification.objects.get(id=mail.id)


def delivered(mail: EmailNotification) -> dict[str, Any]:
    """One of SendGrid's, as documented."""
    return {
        "email": "alice@example.com",
        "timestamp": int(time.time()),
        "event": "delivered",
        "sg_message_id": "14c5d75ce93.dfd.64b469.filter0001.16648.5515E0B88.0",
        "notification_id": str(mail.id),
    }


class TestSendGrid:
    def signed(self, settings, key, body: bytes, *, age: float = 0, timestamp: str = "", **headers: str):
        settings.SENDGRID_WEBHOOK_VERIFICATION_KEY = key[1]
        at = timestamp or str(int(time.time() - age))
        all_headers = {
            "X-Twilio-Email-Event-Webhook-Timestamp": at,
            "X-Twilio-Email-Event-Webhook-Signature": sign(at.encode() + body, key=key[0]),
        } | headers
        wanted = {name: value for name, value in all_headers.items() if value}
        return Client().post("/webhooks/sendgrid", body, "application/json", headers=wanted)

    def test_a_signed_batch_counts(self, settings, key):
        mail = make_mail()
        assert self.signed(settings, key, json.dumps([delivered(mail)]).encode()).status_code == 200
        assert fresh(mail).status == "sent"

    @pytest.mark.parametrize(
        "wrong",
        [
            {"X-Twilio-Email-Event-Webhook-Signature": ""},
            {"X-Twilio-Email-Event-Webhook-Timestamp": ""},
            {"X-Twilio-Email-Event-Webhook-Signature": "AAAA"},
            {"X-Twilio-Email-Event-Webhook-Signature": "not base64 é!"},
            {"X-Twilio-Email-Event-Webhook-Timestamp": "1"},
        ],
    )
    def test_unsigned_and_forged_batches_are_refused_and_change_nothing(self, settings, key, wrong):
        mail = make_mail()
        body = json.dumps([delivered(mail)]).encode()
        assert self.signed(settings, key, body, **wrong).status_code in (400, 401)
        assert fresh(mail).status == "pending"

    @pytest.mark.parametrize("age", [310, -310, 86400 * 365])
    def test_a_stale_batch_is_refused(self, settings, key, age):
        mail = make_mail()
        body = json.dumps([delivered(mail)]).encode()
        assert self.signed(settings, key, body, age=age).status_code == 401
        assert fresh(mail).status == "pending"

    @pytest.mark.parametrize("timestamp", ["nan", "inf", "x", "-1", "9" * 400])
    def test_a_signed_time_that_is_none_is_refused(self, settings, key, timestamp):
        assert self.signed(settings, key, b"[]", timestamp=timestamp).status_code in (400, 401)


class TestResend:
    def test_svix_signs_body_and_time(self, settings):
        settings.RESEND_WEBHOOK_SECRET = "whsec_" + base64.b64encode(b"a secret of resend").decode()
        mail = make_mail(status=Status.FAILED)
        metadata = json.dumps({"notification_id": str(mail.id)})
        data = {
            "email_id": "re-1",
            "to": ["a@example.com"],
            "headers": [{"name": "X-Metadata", "value": metadata}],
        }
        body = json.dumps({"type": "email.delivered", "created_at": "2026-11-01T10:00:00Z", "data": data})
        now = dt.datetime.now(dt.UTC)
        for at, status in ((now - dt.timedelta(hours=1), 401), (now, 200)):
            signature = Svix(settings.RESEND_WEBHOOK_SECRET).sign("msg_1", at, body)
            headers = {
                "svix-id": "msg_1",
                "svix-timestamp": str(int(at.timestamp())),
                "svix-signature": signature,
            }
            answer = Client().post("/webhooks/resend", body, "application/json", headers=headers)
            assert answer.status_code == status
        row = fresh(mail)
        assert (row.status, row.provider, row.provider_message_id) == ("sent", "resend", "re-1")
        assert row.delivered_at == dt.datetime(2026, 11, 1, 10, tzinfo=dt.UTC)
