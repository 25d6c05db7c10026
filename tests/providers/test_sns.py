"""What SNS signs is believed, and nothing else: its certificates come from its own hosts, and are kept."""

from __future__ import annotations

import base64
import datetime as dt
import http.client
import json
import secrets
import socketserver
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID
from django.test import Client

from tests.kit.mails import make_mail
from tests.kit.words import EmailNotification, Status, Suppression

pytestmark = pytest.mark.django_db
HOST = "sns.eu-central-1.amazonaws.com"
PASSWORD = {"Authorization": "Basic " + base64.b64encode(b"sns:secret").decode()}
KEY = rsa.generate_private_key(65537, 2048)


def certificate(*, days: int = 1) -> bytes:
    """Return a self-signed certificate for SNS' host as PEM, valid from yesterday on."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(KEY.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=2))
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(KEY, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


class Sns(socketserver.ThreadingTCPServer):
    """A proxy at whose end SNS answers: its host is reached over TLS, by its own name."""

    allow_reuse_address = daemon_threads = True
    #: Each test has its own, because a process keeps the certificates that it fetched.
    certificate_path: str

    def __init__(self, folder: Path) -> None:
        Sns.certificate_path = f"/SimpleNotificationService-{secrets.token_hex(8)}.pem"
        self.paths: list[str] = []
        self.connections: list[str] = []
        self.body, self.status = certificate(), 200
        (folder / "sns.pem").write_bytes(certificate())
        (folder / "sns.key").write_bytes(
            KEY.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(folder / "sns.pem", folder / "sns.key")
        super().__init__(("127.0.0.1", 0), Tunnel)


class Tunnel(BaseHTTPRequestHandler):
    server: Sns

    def do_CONNECT(self) -> None:
        self.server.connections.append(self.path)
        self.send_response(200)
        self.end_headers()
        with self.server.tls.wrap_socket(self.connection, server_side=True) as inside:
            line = inside.makefile("rb").readline().decode()
            self.server.paths.append(line.split()[1])
            head = f"HTTP/1.1 {self.server.status} {http.client.responses[self.server.status]}\r\n"
            head += f"Content-Length: {len(self.server.body)}\r\nConnection: close\r\n\r\n"
            inside.sendall(head.encode() + self.server.body)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def amazon(settings, monkeypatch, tmp_path) -> Iterator[Sns]:
    settings.EMAIL_PROVIDERS, settings.WEBHOOK_BASIC_AUTH = ["ses"], "sns:secret"
    with Sns(tmp_path) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        for name in ("HTTPS_PROXY", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{server.server_address[1]}")
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "sns.pem"))
        yield server
        server.shutdown()


def note(mail: EmailNotification | None = None, *, version: str = "1", **changes: Any) -> dict[str, Any]:
    """Return a bounce as SES publishes it, or another message, signed as SNS signs it."""
    metadata = json.dumps({"notification_id": str(mail.id) if mail else ""})
    told = {
        "eventType": "Bounce",
        "mail": {"messageId": "ses-1", "headers": [{"name": "X-Metadata", "value": metadata}]},
        "bounce": {
            "bounceType": "Permanent",
            "bounceSubType": "General",
            "bouncedRecipients": [{"emailAddress": "alice@example.com"}],
        },
    }
    message = {
        "Type": "Notification",
        "MessageId": "n-1",
        "TopicArn": "arn:aws:sns:eu-central-1:1:mail",
        "Message": json.dumps(told),
        "Timestamp": dt.datetime.now(dt.UTC).isoformat().replace("+00:00", "Z"),
        "SignatureVersion": version,
        "SigningCertURL": f"https://{HOST}{Sns.certificate_path}",
    } | changes
    names = ["Message", "MessageId", "Subject", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"]
    text = "".join(f"{name}\n{message[name]}\n" for name in names if name in message)
    algorithm = hashes.SHA1() if version == "1" else hashes.SHA256()
    message["Signature"] = base64.b64encode(KEY.sign(text.encode(), padding.PKCS1v15(), algorithm)).decode()
    return message


def post(message: dict[str, Any], headers: dict[str, str] = PASSWORD) -> Any:
    kind = {"x-amz-sns-message-type": message["Type"], "x-amz-sns-message-id": message["MessageId"]}
    # SNS posts JSON as text/plain.
    return Client().post("/webhooks/ses", json.dumps(message), "text/plain", headers=kind | headers)


def fresh(mail: EmailNotification) -> EmailNotification:
    return EmailNotification.objects.get(id=mail.id)


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("subject", [{}, {"Subject": "Amazon SES Email Event Notification"}])
def test_a_signed_notification_counts(amazon, version, subject):
    mail = make_mail(status=Status.FAILED, provider="ses")
    assert post(note(mail, version=version, **subject)).status_code == 200
    row = fresh(mail)
    assert (row.status, row.provider, row.provider_message_id) == ("sent", "ses", "ses-1")
    assert row.bounced_at and Suppression.objects.get().reason == "hard_bounce"


@pytest.mark.parametrize("kind", ["Transient", "Undetermined"])
def test_a_temporary_bounce_suppresses_nothing(amazon, kind):
    mail = make_mail(status=Status.FAILED, provider="ses")
    message = json.loads(note(mail)["Message"])
    message["bounce"]["bounceType"] = kind
    assert post(note(Message=json.dumps(message))).status_code == 200
    assert fresh(mail).status == "sent" and not Suppression.objects.exists()


def test_a_certificate_is_fetched_once_and_then_verifies_without_the_network(amazon):
    mails = [make_mail(status=Status.FAILED, provider="ses") for _ in range(3)]
    assert post(note(mails[0])).status_code == 200
    amazon.status = 500
    assert post(note(mails[1])).status_code == 200
    amazon.shutdown()
    amazon.server_close()
    assert post(note(mails[2])).status_code == 200
    assert amazon.paths == [amazon.certificate_path]


def test_while_the_certificate_cannot_be_had_the_answer_is_503_so_that_sns_posts_again(amazon):
    mail = make_mail(status=Status.FAILED, provider="ses")
    amazon.status = 503
    answer = post(note(mail))
    assert answer.status_code == 503 and answer["Retry-After"] and fresh(mail).status == "failed"
    amazon.status, amazon.body = 200, b"no certificate"
    assert post(note(mail)).status_code == 503
    amazon.body = certificate()
    assert post(note(mail)).status_code == 200 and fresh(mail).status == "sent"


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Basic eDp5"}, {"Authorization": "Bearer sns:secret"}]
)
def test_a_strangers_topic_is_signed_too_so_the_password_must_be_right_and_comes_first(amazon, headers):
    mail = make_mail(status=Status.FAILED, provider="ses")
    answer = post(note(mail), headers)
    assert answer.status_code == 401 and fresh(mail).status == "failed"
    assert "WWW-Authenticate" in answer  # SNS posts without first
    assert amazon.connections == []


@pytest.mark.parametrize(
    "changed",
    [
        {"Message": json.dumps({"eventType": "Delivery"})},
        {"MessageId": "n-2"},
        {"Timestamp": "2026-11-21T00:00:00Z"},
        {"Subject": "added"},
        {"TopicArn": "arn:aws:sns:eu-central-1:2:other"},
        {"Signature": "AAAA"},
        {"Signature": "not base64!"},
        {"Signature": None},
        {"SignatureVersion": "2"},
        {"SignatureVersion": "3"},
        {"SignatureVersion": None},
    ],
)
def test_a_changed_message_is_refused(amazon, changed):
    mail = make_mail(status=Status.FAILED, provider="ses")
    assert post(note(mail) | changed).status_code == 401
    assert fresh(mail).status == "failed"


@pytest.mark.parametrize(
    "url",
    [
        f"http://{HOST}/SimpleNotificationService-0.pem",
        "https://sns.eu-central-1.amazonaws.com.evil.example/SimpleNotificationService-0.pem",
        "https://evil.example/SimpleNotificationService-0.pem",
        f"https://{HOST}@evil.example/SimpleNotificationService-0.pem",
        f"https://{HOST}:8443/SimpleNotificationService-0.pem",
        f"https://{HOST}/../SimpleNotificationService-0.pem",
        f"https://{HOST}/SimpleNotificationService-0.pem?x",
        "https://sns.a/b.amazonaws.com/SimpleNotificationService-0.pem",
        "https://bucket.s3.amazonaws.com/SimpleNotificationService-0.pem",
        5,
        None,
    ],
)
def test_no_other_host_is_asked_for_a_certificate(amazon, url):
    mail = make_mail(status=Status.FAILED, provider="ses")
    assert post(note(mail, SigningCertURL=url)).status_code == 401
    assert fresh(mail).status == "failed" and amazon.connections == []


def test_an_expired_certificate_signs_nothing(amazon):
    amazon.body = certificate(days=-1)
    mail = make_mail(status=Status.FAILED, provider="ses")
    assert post(note(mail)).status_code == 401 and fresh(mail).status == "failed"


def test_an_old_message_is_refused(amazon):
    mail = make_mail(status=Status.FAILED, provider="ses")
    old = dt.datetime.now(dt.UTC) - dt.timedelta(hours=2)
    assert post(note(mail, Timestamp=old.isoformat())).status_code == 401
    assert fresh(mail).status == "failed"


class TestSubscriptions:
    URL = f"https://{HOST}/?Action=ConfirmSubscription&TopicArn=arn:aws:sns:eu-central-1:1:mail&Token=t0"

    def offer(self, **changes: Any) -> dict[str, Any]:
        fields = {"Type": "SubscriptionConfirmation", "Token": "t0", "SubscribeURL": self.URL, "Message": "…"}
        return note(**(fields | changes))

    def test_ours_is_confirmed(self, amazon):
        assert post(self.offer()).status_code == 200
        assert amazon.paths[-1] == self.URL.removeprefix(f"https://{HOST}")

    def test_it_is_offered_again_when_sns_does_not_answer(self, amazon):
        post(note())
        amazon.status = 500
        assert post(self.offer()).status_code == 503

    def test_a_strangers_is_not_confirmed(self, amazon):
        post(note())
        for message, headers in ((self.offer(), {}), (self.offer() | {"Token": "t1"}, PASSWORD)):
            assert post(message, headers).status_code == 401
        assert len(amazon.paths) == 1

    @pytest.mark.parametrize(
        "url", ["https://evil.example/?Action=ConfirmSubscription&Token=t0", f"https://{HOST}/?Action=X", 5]
    )
    def test_no_other_address_is_called(self, amazon, url):
        assert post(self.offer(SubscribeURL=url)).status_code == 401
        assert len(amazon.paths) == 1

    def test_without_a_password_nothing_is_confirmed_even_where_unsigned_posts_are_believed(
        self, amazon, settings
    ):
        settings.WEBHOOK_BASIC_AUTH, settings.WEBHOOKS_UNSIGNED = "", True
        assert post(self.offer(), {}).status_code == 200
        assert amazon.connections == []

    def test_the_greeting_of_a_new_topic_is_taken(self, amazon):
        text = "Successfully validated SNS topic for Amazon SES event publishing."
        assert post(note(Message=text)).status_code == 200
