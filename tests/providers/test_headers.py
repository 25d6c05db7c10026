"""Texts of customers and shops in headers: mail programs show them as they were written."""

from __future__ import annotations

import base64
import email
import email.policy
import json
import re
from collections.abc import Callable
from email.header import decode_header, make_header
from email.message import EmailMessage, Message
from email.utils import getaddresses
from typing import Any

import pytest

from notifications.admin.email_preview import mime_of
from notifications.providers.ses.sandbox import SesDialect
from runtime.texts import break_links
from tests.kit.mails import make_mail
from tests.kit.providers import HTTP
from tests.kit.words import PROVIDERS, EmailNotification, Verdict

pytestmark = pytest.mark.django_db

PAYPAL = "=?utf-8?b?UGF5UGFs?="
TEXTS = (
    PAYPAL,
    "A-1 =?UTF-8?Q?=0ABcc:_x@evil.example?=",
    "Ü =?utf-8?q?=E2=82=AC?= (x)",
    'O\'Neill, "Jürgen" =?x',
    "ü" * 200,
    "é" + "a" * 199,
    "李小龍 " * 50,
    "👨‍👩‍👧" * 25,
    "علی‌رضا",
)
MIME = ("smtp", "ses", "the admin")
_WORD = re.compile(r"=\?[^?\s]*\?[bq]\?[^?\s]*\?=", re.IGNORECASE)


def mail_with(text: str) -> EmailNotification:
    text = text.strip()
    sender = {"from_email": _address(text, "a@shop.test"), "reply_to": _address(text, "help@shop.test")}
    return make_mail(to_name=text, subject=text, **sender)


def _address(name: str, address: str) -> str:
    quoted = name.replace("\\", r"\\").replace('"', r"\"")
    return f'"{quoted}" <{address}>'


@pytest.fixture
def as_mime(request: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, EmailNotification], bytes]:
    """Return the message that a provider gets, or that the admin offers as a file."""

    def through(name: str, mail: EmailNotification) -> bytes:
        if name == "the admin":
            return mime_of(mail).as_bytes()
        if name == "smtp":
            server = request.getfixturevalue("smtp")
            assert PROVIDERS[name].send(mail).verdict is Verdict.ACCEPTED
            return bytes(server.messages[-1].encode())
        bodies: list[bytes] = []
        read = SesDialect.payload
        monkeypatch.setattr(
            SesDialect,
            "payload",
            lambda self, body: bodies.append(body) or read(self, body),  # type: ignore[func-returns-value]
        )
        request.getfixturevalue("provider")
        assert PROVIDERS[name].send(mail).verdict is Verdict.ACCEPTED
        return base64.b64decode(json.loads(bodies[-1])["Content"]["Raw"]["Data"])

    return through


@pytest.mark.parametrize("name", MIME)
@pytest.mark.parametrize("text", TEXTS)
def test_a_header_is_decoded_to_what_was_written(as_mime, name, text):
    raw = as_mime(name, mail_with(text))
    text = text.strip()
    modern = email.message_from_bytes(raw, policy=email.policy.default)
    old: Message = email.message_from_bytes(raw)
    assert isinstance(modern, EmailMessage)
    assert modern["Subject"] == text
    assert str(make_header(decode_header(old["Subject"]))) == text
    for header, written, address in (
        ("To", break_links(text), "alice@example.com"),  # the customer's, unlike the shop's own
        ("From", text, "a@shop.test"),
        ("Reply-To", text, "help@shop.test"),
    ):
        (parsed,) = modern[header].addresses
        # Python's newer parser keeps the spaces between the encoded words of a name, contrary to RFC 2047.
        assert parsed.display_name.replace(" ", "") == written.replace(" ", "")
        assert parsed.addr_spec == address
        ((encoded, plain),) = getaddresses([old[header]])
        assert (str(make_header(decode_header(encoded))), plain) == (written, address)
    assert "Bcc" not in old


@pytest.mark.parametrize("name", MIME)
@pytest.mark.parametrize("text", TEXTS)
def test_an_encoded_word_and_its_line_are_as_short_as_rfc_2047_wants(as_mime, name, text):
    head = as_mime(name, mail_with(text)).decode().replace("\r\n", "\n").partition("\n\n")[0]
    assert _WORD.search(head)
    for line in head.splitlines():
        for word in _WORD.findall(line):
            assert len(word) <= 75
            assert len(line) <= 76, line


@pytest.mark.parametrize("name", [name for name in HTTP if name != "ses"])
def test_an_api_gets_nothing_that_mail_programs_decode(provider, name):
    for text in (PAYPAL, "A-1 =?UTF-8?Q?=0ABcc:_x@evil.example?=", "==??utf-8?q?x?="):
        assert PROVIDERS[name].send(mail_with(text)).verdict is Verdict.ACCEPTED
        received = provider.mails[-1]
        places = {key: received.payload[key] for key in ("from", "reply_to_list", "subject")}
        assert "=?" not in json.dumps(places)
        shown = text.replace("=?", "= ?")
        (answers,) = received.reply_to
        assert (received.subject, received.payload["from"]["name"], answers["name"]) == (shown,) * 3
        assert received.to == "alice@example.com"
        ((to,),) = (part["to"] for part in received.payload["personalizations"])
        # Postmark takes a header's form, so a name that became non-ASCII by U+200C is encoded, once.
        assert str(make_header(decode_header(to["name"]))) == break_links(shown)
