"""What providers tell afterwards: signed, fresh, in any order and number; and whatever else is posted."""

from __future__ import annotations

import base64
import datetime as dt
import itertools
import json
import time
import uuid
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from django.db import connection
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from svix.webhooks import Webhook as Svix

from config.local.sandbox.webhooks import sign
from notifications.models import EmailNotification, Suppression
from notifications.providers import webhook as base
from notifications.providers.resend import webhook as resend
from notifications.providers.sendgrid import webhook as sendgrid
from notifications.providers.ses import webhook as ses
from outbox.core.ids import new_id
from outbox.core.privacy import address_hash
from outbox.delivery.deliverable import Settlement
from outbox.delivery.outcomes import Outcome, Status, Verdict
from outbox.models import Heartbeat
from tests.factories import make_mail, make_mails, statuses

pytestmark = pytest.mark.django_db
URL = "/webhooks/sendgrid"
NOW = 1_795_000_000  # some time that SendGrid could say


@pytest.fixture(autouse=True)
def _unnoted():
    base._noted.clear()


def event(mail: Any, kind: str, **more: Any) -> dict[str, Any]:
    """One of SendGrid's, as documented."""
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


def fresh(mail: EmailNotification) -> EmailNotification:
    return EmailNotification.objects.get(id=mail.id)


class TestEffects:
    @pytest.mark.parametrize("kind", ["processed", "deferred", "delivered", "open", "click", "spamreport"])
    @pytest.mark.parametrize(
        "status", ["pending", "processing", "failed", "dead_lettered", "discarded", "suppressed"]
    )
    def test_whatever_shows_that_the_provider_has_it_makes_an_unsent_mail_sent(self, status, kind):
        mail = make_mail(status=status)
        assert post([event(mail, kind)]).status_code == 200
        row = fresh(mail)
        assert (row.status, row.provider, row.provider_message_id) == ("sent", "sendgrid", "14c5d75ce93")
        assert row.sent_at and row.claim_token is None and row.claimed_at is None

    @pytest.mark.parametrize("verdict", [Verdict.AMBIGUOUS, Verdict.TRANSIENT, Verdict.PERMANENT])
    def test_a_workers_later_word_changes_nothing_after_it(self, verdict):
        make_mail()
        (claimed,) = EmailNotification.objects.claim(limit=1)
        post([event(claimed, "processed")])
        late = Settlement(claimed.id, Outcome(verdict, "sendgrid", code="x"), claimed.claim_token)
        assert EmailNotification.objects.settle([late]) == []
        assert fresh(claimed).status == "sent" and fresh(claimed).errors == []

    def test_delivered_keeps_the_earliest_time(self):
        mail = make_mail(status=Status.SENT)
        for at in (NOW + 5, NOW, NOW + 9):
            post([event(mail, "delivered", timestamp=at)])
        assert fresh(mail).delivered_at == dt.datetime.fromtimestamp(NOW, dt.UTC)

    def test_a_hard_bounce_is_kept_and_its_address_suppressed_as_a_hash(self):
        mail = make_mail(status=Status.SENT, recipient_email="Gone@Example.com")
        post([event(mail, "bounce", type="bounce", status="5.1.1")])
        assert fresh(mail).bounced_at and fresh(mail).status == "sent"
        row = Suppression.objects.get()
        assert row.address_hash == address_hash("gone@example.com") and row.reason == "hard_bounce"
        assert (row.provider, row.notification_id) == ("sendgrid", mail.id)

    def test_a_block_is_no_hard_bounce(self):
        mail = make_mail(status=Status.SENT)
        post([event(mail, "bounce", type="blocked")])
        assert fresh(mail).bounced_at is None and not Suppression.objects.exists()

    def test_a_complaint_is_kept_and_suppresses(self):
        mail = make_mail(status=Status.SENT)
        post([event(mail, "spamreport")])
        assert fresh(mail).complained_at and Suppression.objects.get().reason == "complaint"

    @pytest.mark.parametrize(
        ("reason", "suppressed"),
        [
            ("Bounced Address", "hard_bounce"),
            ("Spam Reporting Address", "complaint"),
            ("Spam Content", None),
            ("Unsubscribed Address", None),
        ],
    )
    def test_dropped_was_taken_and_will_not_arrive(self, reason, suppressed):
        mail = make_mail(status=Status.FAILED)
        post([event(mail, "dropped", reason=reason)])
        assert fresh(mail).status == "sent" and fresh(mail).bounced_at
        assert list(Suppression.objects.values_list("reason", flat=True)) == [suppressed] * bool(suppressed)

    def test_repeats_and_any_order_end_in_the_same(self):
        ends = set()
        for order in itertools.permutations(["processed", "deferred", "delivered", "spamreport"]):
            mail = make_mail(status=Status.FAILED, recipient_email=f"{len(ends)}@example.com")
            for kind in (*order, *order):
                post([event(mail, kind, timestamp=NOW)])
            row = fresh(mail)
            ends.add((row.status, row.delivered_at, row.complained_at, row.bounced_at))
        assert len(ends) == 1

    def test_unknown_ids_are_ignored(self):
        mail = make_mail()
        ids = [str(new_id()), str(uuid.uuid4()), "", "x", None, 5, [], {}, str(uuid.UUID(int=0))]
        assert post([event(id, "delivered") for id in ids]).status_code == 200
        missing = event(mail, "delivered")
        del missing["notification_id"]
        assert post([missing]).status_code == 200
        assert statuses() == {"pending": 1}

    def test_one_bad_event_does_not_keep_the_others_away(self):
        mail = make_mail()
        batch = [None, 5, {}, {"event": 7}, event(mail, "delivered", timestamp="x"), event(mail, "delivered")]
        assert post(batch).status_code == 200
        assert fresh(mail).status == "sent"

    def test_a_thousand_events_take_a_few_statements(self):
        make_mails(500, status="failed")
        ids = list(EmailNotification.objects.values_list("id", flat=True))
        batch = [event(str(id), kind) for id in ids for kind in ("processed", "spamreport")]
        with CaptureQueriesContext(connection) as queries:
            assert post(batch).status_code == 200
        assert len(queries) <= 10
        assert statuses() == {"sent": 500} and Suppression.objects.count() == 500

    def test_arrival_leaves_a_mark(self):
        post([event(make_mail(), "delivered")])
        assert Heartbeat.objects.filter(name="webhook:sendgrid").exists()

    def test_an_impossible_time_becomes_now(self):
        mail = make_mail(status=Status.SENT)
        for at in (-(10**18), 10**18, 10**11, 0, 1e300):
            assert post([event(mail, "delivered", timestamp=at)]).status_code == 200
        at = fresh(mail).delivered_at
        assert at is not None and abs((dt.datetime.now(dt.UTC) - at).total_seconds()) < 60


@pytest.fixture(scope="module")
def key() -> tuple[str, str]:
    """A private key as PEM, and its public half as SendGrid shows it."""
    private = ec.generate_private_key(ec.SECP256R1())
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = private.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return pem.decode(), base64.b64encode(public).decode()


class TestSignatures:
    def signed(self, settings, key, body: bytes, *, age: float = 0, timestamp: str = "", **headers: str):
        settings.SENDGRID_WEBHOOK_VERIFICATION_KEY = key[1]
        at = timestamp or str(int(time.time() - age))
        all_headers = {
            "X-Twilio-Email-Event-Webhook-Timestamp": at,
            "X-Twilio-Email-Event-Webhook-Signature": sign(content=at.encode() + body, private_key=key[0]),
        } | headers
        wanted = {name: value for name, value in all_headers.items() if value}
        request = RequestFactory().post(URL, body, "application/json", headers=wanted)
        return sendgrid.view()(request)

    def test_a_signed_batch_counts(self, settings, key):
        mail = make_mail()
        assert self.signed(settings, key, json.dumps([event(mail, "delivered")]).encode()).status_code == 200
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
        body = json.dumps([event(mail, "delivered")]).encode()
        assert self.signed(settings, key, body, **wrong).status_code in (400, 401)
        assert fresh(mail).status == "pending"

    @pytest.mark.parametrize("age", [301, -301, 86400 * 365])
    def test_a_stale_batch_is_refused(self, settings, key, age):
        mail = make_mail()
        body = json.dumps([event(mail, "delivered")]).encode()
        assert self.signed(settings, key, body, age=age).status_code == 401
        assert fresh(mail).status == "pending"

    @pytest.mark.parametrize("timestamp", ["nan", "inf", "x", "-1", "9" * 400])
    def test_a_signed_time_that_is_none_is_refused(self, settings, key, timestamp):
        assert self.signed(settings, key, b"[]", timestamp=timestamp).status_code in (400, 401)

    def test_resends_signature_is_svix(self, settings):
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
            request = RequestFactory().post("/webhooks/resend", body, "application/json", headers=headers)
            assert resend.view()(request).status_code == status
        row = fresh(mail)
        assert (row.status, row.provider, row.provider_message_id) == ("sent", "resend", "re-1")
        assert row.delivered_at == dt.datetime(2026, 11, 1, 10, tzinfo=dt.UTC)

    @pytest.mark.parametrize(
        ("kind", "reason"), [("Permanent", "hard_bounce"), ("Transient", None), ("Undetermined", None)]
    )
    def test_ses_comes_through_sns_with_basic_auth(self, settings, kind, reason):
        settings.WEBHOOK_BASIC_AUTH = "sns:secret"
        mail = make_mail(status=Status.FAILED)
        metadata = json.dumps({"notification_id": str(mail.id)})
        told = {
            "eventType": "Bounce",
            "mail": {"messageId": "ses-1", "headers": [{"name": "X-Metadata", "value": metadata}]},
            "bounce": {
                "bounceType": kind,
                "bounceSubType": "General",
                "bouncedRecipients": [{"emailAddress": "alice@example.com"}],
            },
        }
        note = {
            "Type": "Notification",
            "MessageId": "n-1",
            "Timestamp": dt.datetime.now(dt.UTC).isoformat().replace("+00:00", "Z"),
            "Message": json.dumps(told),
        }
        headers = {"x-amz-sns-message-type": "Notification", "x-amz-sns-message-id": "n-1"}
        authorization = "Basic " + base64.b64encode(b"sns:secret").decode()
        for extra, status in (
            ({}, 401),
            ({"Authorization": "Basic eDp5"}, 401),
            ({"Authorization": authorization}, 200),
        ):
            request = RequestFactory().post(
                "/webhooks/ses", json.dumps(note), "application/json", headers=headers | extra
            )
            answer = ses.view()(request)
            assert answer.status_code == status
            assert status == 200 or fresh(mail).status == "failed"
        assert (fresh(mail).status, fresh(mail).provider_message_id) == ("sent", "ses-1")
        assert list(Suppression.objects.values_list("reason", flat=True)) == ([reason] if reason else [])
        old = note | {"Timestamp": "2026-01-01T00:00:00Z"}
        request = RequestFactory().post(
            "/webhooks/ses",
            json.dumps(old),
            "application/json",
            headers=headers | {"Authorization": authorization},
        )
        assert ses.view()(request).status_code == 401


class TestWhateverIsPosted:
    @pytest.mark.parametrize("provider", ["sendgrid", "ses", "resend"])
    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"\xff\xfe",
            b"null",
            b"{}",
            b'"x"',
            b"17",
            b"[[[]]]",
            b"[" * 100_000,
            b'{"type": "email.bounced", "data": {"bounce": 5, "to": 7, "headers": 3}}',
            b'{"type": [], "data": null}',
            b'{"Type": "Notification", "Message": "[]"}',
        ],
    )
    def test_is_never_a_500_and_changes_nothing(self, provider, body):
        make_mail()
        headers = {"x-amz-sns-message-type": "Notification"}
        answer = post(body, f"/webhooks/{provider}", **headers)
        assert answer.status_code in (200, 400, 401), answer.content
        assert statuses() == {"pending": 1} and not Suppression.objects.exists()

    def test_too_much_is_413(self):
        assert post(b" " * (base.MOST_BYTES + 1)).status_code == 413

    @pytest.mark.parametrize("method", ["get", "put", "delete", "patch"])
    def test_another_method_is_405(self, method):
        answer = getattr(Client(), method)(URL)
        assert answer.status_code == 405 and answer["Allow"] == "POST, HEAD"

    def test_head_is_answered_for_those_who_verify_by_it(self):
        assert Client().head(URL).status_code == 200

    @hypothesis_settings(
        max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(
        st.lists(
            st.dictionaries(
                st.sampled_from(
                    ["event", "timestamp", "email", "type", "reason", "notification_id", "sg_message_id"]
                ),
                st.recursive(
                    st.none()
                    | st.booleans()
                    | st.floats(allow_nan=False)
                    | st.integers()
                    | st.text()
                    | st.sampled_from(["bounce", "delivered", "dropped", "blocked", "spamreport"]),
                    lambda inner: (
                        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
                    ),
                    max_leaves=5,
                ),
            ),
            max_size=5,
        )
    )
    def test_no_batch_of_odd_events_is_a_500(self, batch):
        assert post(batch).status_code == 200
