"""Each provider's signature: what it covers, how old it may be, what a forged one changes (nothing)."""

from __future__ import annotations

import base64
import datetime as dt
import json
import time
from typing import Any

import pytest
from django.test import Client
from django.utils.module_loading import import_string

from notifications.providers.dialect import Event, Post
from notifications.providers.mailgun.sandbox import signature
from notifications.providers.mailgun.webhook import RETRIED_FOR_SECONDS
from notifications.providers.webhook import TOLERANCE_SECONDS
from tests.kit.mails import make_mail
from tests.kit.words import (
    Dialect,
    EmailNotification,
    IdempotencyKey,
    Status,
    Suppression,
    declarations,
    make_key,
    sign,
)

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
        mail = make_mail(provider="sendgrid")
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
        mail = make_mail(provider="sendgrid")
        body = json.dumps([delivered(mail)]).encode()
        assert self.signed(settings, key, body, **wrong).status_code in (400, 401)
        assert fresh(mail).status == "pending"

    @pytest.mark.parametrize("age", [310, -310, 86400 * 365])
    def test_a_stale_batch_is_refused(self, settings, key, age):
        mail = make_mail(provider="sendgrid")
        body = json.dumps([delivered(mail)]).encode()
        assert self.signed(settings, key, body, age=age).status_code == 401
        assert fresh(mail).status == "pending"

    @pytest.mark.parametrize("timestamp", ["nan", "inf", "x", "-1", "9" * 400])
    def test_a_signed_time_that_is_none_is_refused(self, settings, key, timestamp):
        assert self.signed(settings, key, b"[]", timestamp=timestamp).status_code in (400, 401)


class TestResend:
    SECRET = "whsec_" + base64.b64encode(b"a secret of resend").decode()

    @pytest.fixture(autouse=True)
    def secret(self, settings):
        settings.RESEND_WEBHOOK_SECRET = self.SECRET

    def post(self, kind: str, *, age: dt.timedelta = dt.timedelta(), **data: Any) -> int:
        from svix.webhooks import Webhook as Svix  # takes most of a second

        data = {"email_id": "re-1", "to": ["alice@example.com"], **data}
        body = json.dumps({"type": f"email.{kind}", "created_at": "2026-11-01T10:00:00Z", "data": data})
        at = dt.datetime.now(dt.UTC) - age
        headers = {
            "svix-id": "msg_1",
            "svix-timestamp": str(int(at.timestamp())),
            "svix-signature": Svix(self.SECRET).sign("msg_1", at, body),
        }
        return Client().post("/webhooks/resend", body, "application/json", headers=headers).status_code

    def test_svix_signs_body_and_time(self):
        mail = make_mail(status=Status.FAILED, provider="resend")
        header = {"name": "X-Metadata", "value": json.dumps({"notification_id": str(mail.id)})}
        assert self.post("delivered", age=dt.timedelta(hours=1), headers=[header]) == 401
        assert fresh(mail).status == "failed"
        assert self.post("delivered", headers=[header]) == 200
        row = fresh(mail)
        assert (row.status, row.provider, row.provider_message_id) == ("sent", "resend", "re-1")
        assert row.delivered_at == dt.datetime(2026, 11, 1, 10, tzinfo=dt.UTC)

    @pytest.mark.parametrize("as_list", [True, False])
    def test_the_id_is_also_found_in_the_tags(self, as_list):
        mail = make_mail(status=Status.FAILED, provider="resend")
        value = str(mail.id)
        tags = [{"name": "notification_id", "value": value}] if as_list else {"notification_id": value}
        assert self.post("delivered", tags=tags) == 200
        assert fresh(mail).status == "sent"

    @pytest.mark.parametrize(
        "bounce, reasons",
        [({"type": "Permanent"}, ["hard_bounce"]), ({"type": "Transient"}, []), (None, ["hard_bounce"])],
    )
    def test_only_a_permanent_bounce_suppresses(self, bounce, reasons):
        mail = make_mail(status=Status.FAILED, provider="resend")
        tags = {"notification_id": str(mail.id)}
        assert self.post("bounced", tags=tags, **({"bounce": bounce} if bounce else {})) == 200
        assert list(Suppression.objects.values_list("reason", flat=True)) == reasons


def played(name: str, mail: EmailNotification, kind: str, key: str) -> Post:
    """Make a provider's post as the sandbox does."""
    ids = {"notification_id": str(mail.id)}
    event = Event(kind, "m-1", mail.recipient_email, time.time() - 60, ids, f"<{mail.id}@example.com>")
    dialect: Dialect = import_string(declarations()[name].dialect)()
    (post,) = dialect.posts([event], key=key)
    return post


def send(name: str, post: Post, **changes: str | None) -> int:
    headers = {**post.headers, **changes}
    kind = str(headers.pop("Content-Type"))
    sent = {key: value for key, value in headers.items() if value is not None}
    return Client().post(f"/webhooks/{name}", post.body, kind, headers=sent).status_code


#: What became of a mail -> bounced_at, complained_at, delivered_at are set; the suppression's reason.
EFFECTS = {
    "processed": ((False, False, False), None),
    "delivered": ((False, False, True), None),
    "deferred": ((False, False, False), None),
    "blocked": ((False, False, False), None),
    "bounce": ((True, False, False), "hard_bounce"),
    "dropped": ((True, False, False), "hard_bounce"),
    "spamreport": ((False, True, False), "complaint"),
}
#: Postmark posts nothing before delivery, and calls what it gave up on a soft bounce.
NOT_POSTED = {("postmark", "processed"), ("postmark", "deferred"), ("postmark", "dropped")}


@pytest.mark.parametrize("name", ["sendgrid", "postmark", "mailgun"])
@pytest.mark.parametrize("kind", EFFECTS)
def test_each_kind_of_event_has_its_effect(settings, name, kind):
    if (name, kind) in NOT_POSTED:
        return
    signs, verifies = declarations()[name].make_key()
    setattr(settings, declarations()[name].webhook_key, verifies)
    mail = make_mail(status=Status.FAILED, provider=name)
    assert send(name, played(name, mail, kind, signs)) == 200
    row, (times, reason) = fresh(mail), EFFECTS[kind]
    assert (row.status, row.provider) == ("sent", name) and "m-1" in row.provider_message_id
    assert (bool(row.bounced_at), bool(row.complained_at), bool(row.delivered_at)) == times
    at = row.bounced_at or row.complained_at or row.delivered_at
    assert at is None or 55 < (dt.datetime.now(dt.UTC) - at).total_seconds() < 120
    assert list(Suppression.objects.values_list("reason", flat=True)) == [reason] * bool(reason)


class TestPostmark:
    @pytest.fixture(autouse=True)
    def password(self, settings):
        settings.POSTMARK_WEBHOOK_BASIC_AUTH = "postmark:secret"

    @pytest.mark.parametrize(
        "login_text",
        [None, "postmark", "postmark:wrong", "other:secret", ":", "postmark:secret\n", "postmark:sécret"],
    )
    def test_without_its_password_nothing_is_believed(self, login_text):
        mail = make_mail(status=Status.FAILED, provider="postmark")
        login = None if login_text is None else "Basic " + base64.b64encode(login_text.encode()).decode()
        assert send("postmark", played("postmark", mail, "bounce", ""), Authorization=login) == 401
        assert fresh(mail).status == "failed" and not Suppression.objects.exists()

    @pytest.mark.parametrize("kind", ["SoftBounce", "SpamNotification", "Blocked", "DnsError", "Transient"])
    def test_an_address_that_postmark_keeps_active_is_not_suppressed(self, kind):
        mail = make_mail(status=Status.FAILED, provider="postmark")
        body = {"RecordType": "Bounce", "Type": kind, "Inactive": False, "Email": "a@example.com"}
        body |= {"MessageID": "m-1", "Metadata": {"notification_id": str(mail.id)}}
        post = Post(json.dumps(body).encode(), played("postmark", mail, "bounce", "postmark:secret").headers)
        assert send("postmark", post) == 200
        assert fresh(mail).status == "sent" and fresh(mail).complained_at is None
        assert not Suppression.objects.exists()


class TestMailgun:
    @pytest.fixture(autouse=True)
    def signing_key(self, settings):
        settings.MAILGUN_WEBHOOK_SIGNING_KEY = "key-of-mailgun"

    def post(self, mail: EmailNotification, signed: Any) -> int:
        made = played("mailgun", mail, "delivered", "key-of-mailgun")
        body = json.loads(made.body) | {"signature": signed}
        return send("mailgun", Post(json.dumps(body).encode(), made.headers))

    def test_a_signature_counts_for_as_long_as_mailgun_posts_again(self):
        for age, status in ((0, 200), (8 * 3600, 200), (9 * 3600, 401), (-290, 200), (-400, 401)):
            mail = make_mail(status=Status.FAILED, provider="mailgun")
            timestamp = str(int(time.time() - age))
            assert self.post(mail, signature("key-of-mailgun", timestamp=timestamp, token="t")) == status
            assert fresh(mail).status == ("sent" if status == 200 else "failed")

    def test_a_signature_counts_for_one_event_alone(self):
        first, second = (make_mail(status=Status.FAILED, provider="mailgun") for _ in range(2))
        signed = signature("key-of-mailgun", timestamp=str(int(time.time())), token="e0t")
        assert self.post(first, signed) == 200
        assert self.post(second, signed) == 401
        # The same signature, with two characters of the token in the time, which is still a number.
        moved = {**signed, "timestamp": signed["timestamp"] + "e0", "token": "t"}
        assert self.post(second, moved) == 401
        assert fresh(first).status == "sent" and fresh(second).status == "failed"

    def test_a_repeat_of_the_same_post_counts_again(self, django_assert_num_queries):
        """Mailgun posts again after any answer but 200."""
        mail = make_mail(status=Status.SENT, provider="mailgun")
        made = played("mailgun", mail, "delivered", "key-of-mailgun")
        assert [send("mailgun", made) for _ in range(3)] == [200, 200, 200]
        with django_assert_num_queries(3):  # one more than the post of another provider
            assert send("mailgun", made) == 200
        assert IdempotencyKey.objects.get().scope == "webhook:mailgun"

    def test_a_forged_post_is_not_remembered(self):
        mail = make_mail(status=Status.FAILED, provider="mailgun")
        signed = signature("another", timestamp=str(int(time.time())), token="t")
        assert self.post(mail, signed) == 401
        assert not IdempotencyKey.objects.exists()

    def test_a_signature_is_kept_for_longer_than_it_counts(self):
        assert IdempotencyKey.SIGNATURE_SECONDS >= RETRIED_FOR_SECONDS + 2 * TOLERANCE_SECONDS

    @pytest.mark.parametrize(
        "change",
        [
            *({"token": "u"}, {"token": ["t"]}, {"signature": "0" * 64}, {"signature": "é"}),
            *({"timestamp": "1"}, {"timestamp": None}, {"timestamp": "nan"}),
        ],
    )
    def test_a_changed_signature_is_refused(self, change):
        mail = make_mail(status=Status.FAILED, provider="mailgun")
        signed = signature("key-of-mailgun", timestamp=str(int(time.time())), token="t")
        assert self.post(mail, {**signed, **change}) in (400, 401)
        assert self.post(mail, signature("another", timestamp=signed["timestamp"], token="t")) == 401
        assert fresh(mail).status == "failed"

    @pytest.mark.parametrize("signed", [{}, None, 5, [], "x"])
    def test_no_signature_is_refused(self, signed):
        mail = make_mail(status=Status.FAILED, provider="mailgun")
        assert self.post(mail, signed) in (400, 401) and fresh(mail).status == "failed"

    def test_the_form_of_before_2018_is_refused(self):
        mail = make_mail(status=Status.FAILED, provider="mailgun")
        form = {"event": "delivered", "notification_id": str(mail.id)}
        form |= signature("key-of-mailgun", timestamp=str(int(time.time())), token="t")
        assert Client().post("/webhooks/mailgun", form).status_code == 400
        assert fresh(mail).status == "failed"

    def test_a_failure_that_is_not_the_addresss_suppresses_nothing(self):
        mail = make_mail(status=Status.FAILED, provider="mailgun")
        made = played("mailgun", mail, "bounce", "key-of-mailgun")
        body = json.loads(made.body)
        body["event-data"]["reason"] = "generic"
        assert send("mailgun", Post(json.dumps(body).encode(), made.headers)) == 200
        assert fresh(mail).bounced_at and not Suppression.objects.exists()


#: Bounces whose cause is not the mailbox, as the providers tell of them.
OTHER_CAUSES: dict[str, list[dict[str, Any]]] = {
    "postmark": [
        {"Type": kind, "Inactive": True} for kind in ("Blocked", "DMARCPolicy", "ManuallyDeactivated")
    ],
    "sendgrid": [
        {"type": "bounce", "status": "5.0.0", "reason": "550 blocked using Spamhaus"},
        {"type": "bounce", "status": "550", "reason": "550 no PTR record"},
        {"type": "bounce", "status": "", "reason": "Too old"},
    ],
}


@pytest.mark.parametrize(
    ("name", "change"), [(name, change) for name, changes in OTHER_CAUSES.items() for change in changes]
)
def test_a_bounce_for_another_cause_than_the_mailbox_suppresses_nobody(name, change, settings):
    settings.EMAIL_PROVIDERS, settings.WEBHOOKS_UNSIGNED = [name], True
    key = declarations()[name].webhook_key
    setattr(settings, key, "")
    mail = make_mail(status=Status.FAILED, provider=name)
    made = played(name, mail, "bounce", "")
    body = json.loads(made.body)
    (body[0] if isinstance(body, list) else body).update(change)
    assert send(name, Post(json.dumps(body).encode(), made.headers)) == 200
    assert fresh(mail).status == "sent"
    assert not Suppression.objects.exists()


def test_a_post_with_more_events_than_providers_send_is_refused(settings):
    settings.EMAIL_PROVIDERS, settings.WEBHOOKS_UNSIGNED = ["sendgrid"], True
    settings.SENDGRID_WEBHOOK_VERIFICATION_KEY = ""
    headers = {"Content-Type": "application/json"}
    assert send("sendgrid", Post(json.dumps([{}] * 5000).encode(), headers)) == 200
    assert send("sendgrid", Post(json.dumps([{}] * 5001).encode(), headers)) == 400
