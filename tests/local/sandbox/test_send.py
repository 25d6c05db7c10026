"""The send endpoint answers as SendGrid does."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
from anymail.exceptions import AnymailAPIError
from django.core.mail import EmailMultiAlternatives, get_connection

from local.sandbox import Sandbox
from local.sandbox.mails import Mail, Mailbox
from local.sandbox.protocol import MAX_BODY
from tests.kit.sendgrid import Send, payload
from tests.kit.waiting import PATIENCE

MAIL = Mail("1", 1.0, ("ada@example.com",), "Paid", {"notification_id": "n-1"}, {}, b'{"from": {}}')


def test_accepts_with_202_an_empty_body_and_a_message_id(sandbox: Sandbox, send: Send) -> None:
    response = send()
    assert (response.status_code, response.content) == (202, b"")
    assert [mail.message_id for mail in sandbox.mails] == [response.headers["X-Message-Id"]]


def test_keeps_what_was_sent(sandbox: Sandbox, send: Send) -> None:
    send(headers={"X-Shop": "one"})
    (mail,) = sandbox.mails
    assert mail.recipients == ("ada@example.com",)
    assert (mail.from_email, mail.subject) == ("orders@example.com", "Your order is paid")
    assert (mail.text, mail.html) == ("Thank you.", "<p>Thank you.</p>")
    assert (mail.notification_id, mail.order_id, mail.event_type) == ("n-1", "o-1", "order.paid")
    assert mail.headers == {"X-Shop": "one"}
    assert mail.payload == payload(headers={"X-Shop": "one"})


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_restarted_mailbox_has_its_mails_but_not_more_than_it_may_keep(tmp_path: Path) -> None:
    kept = tmp_path / "mailbox.jsonl"

    def mailbox() -> Mailbox:
        opened = Mailbox(max_mails=2, max_bytes=10**4)
        opened.keep_in(kept)
        return opened

    first = mailbox()
    for number in range(3):
        first.keep(mail=replace(MAIL, message_id=str(number), subject="Größe"))
    with kept.open("ab") as file:
        file.write(b'{"message_id": "cut o')
    second = mailbox()
    assert second.all() == first.all() and len(second.all()) == 2
    assert second.stats()["accepted"] == 0
    for number in range(400):
        second.keep(mail=replace(MAIL, message_id=f"more {number}"))
    assert kept.stat().st_size < 3 * 10**4
    second.clear()
    assert mailbox().all() == []


def test_takes_what_anymail_sends(sandbox: Sandbox) -> None:
    connection = get_connection(
        "anymail.backends.sendgrid.EmailBackend", api_key="any", api_url=sandbox.api_url
    )
    message = EmailMultiAlternatives(
        "Grüße", "Text", "orders@example.com", ["Ada Ö <ada@example.com>"], connection=connection
    )
    message.attach_alternative("<p>Größe</p>", "text/html")
    message.metadata = {"notification_id": "n-7", "order_id": "o-7", "event_type": "order.paid"}  # type: ignore[attr-defined]
    assert message.send() == 1
    (mail,) = sandbox.mails
    assert (mail.subject, mail.html, mail.notification_id) == ("Grüße", "<p>Größe</p>", "n-7")
    assert message.anymail_status.esp_response.headers["X-Message-Id"] == mail.message_id  # type: ignore[attr-defined]


def test_tells_anymail_why_it_refused(sandbox: Sandbox) -> None:
    connection = get_connection(
        "anymail.backends.sendgrid.EmailBackend", api_key="any", api_url=sandbox.api_url
    )
    message = EmailMultiAlternatives(
        "", "Text", "orders@example.com", ["a@example.com"], connection=connection
    )
    with pytest.raises(AnymailAPIError, match="A subject of at least one character"):
        message.send()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"personalizations": None}, "personalizations"),
        ({"personalizations": []}, "personalizations"),
        ({"personalizations": "x"}, "personalizations"),
        ({"personalizations": [None]}, "personalizations.0.to"),
        ({"personalizations": [{"to": [{"email": 1}]}]}, "personalizations.0.to.0.email"),
        ({"to": "not an address"}, "personalizations.0.to.0.email"),
        ({"to": "a@example.com\r\nBcc: b@example.com"}, "personalizations.0.to.0.email"),
        ({"to": "a@nodot"}, "personalizations.0.to.0.email"),
        (
            {"personalizations": [{"to": [{"email": "a@b.org"}], "cc": [{"email": "A@b.org"}]}]},
            "personalizations.0.cc.0",
        ),
        ({"from": None}, "from.email"),
        ({"from": {"email": "nobody"}}, "from.email"),
        ({"subject": None}, "subject"),
        ({"subject": ""}, "subject"),
        ({"content": None}, "content"),
        ({"content": [{"type": "text/plain", "value": ""}]}, "content.0.value"),
        (
            {"content": [{"type": "text/html", "value": "a"}, {"type": "text/plain", "value": "b"}]},
            "content",
        ),
        ({"custom_args": {"order_id": 7}}, "custom_args"),
        ({"custom_args": {"order_id": "x" * 10_001}}, "custom_args"),
        ({"headers": {"Subject": "other"}}, "headers.Subject"),
    ],
)
def test_refuses_a_payload_naming_the_field(
    sandbox: Sandbox, send: Send, changes: dict[str, Any], field: str
) -> None:
    response = send(**changes)
    assert response.status_code == 400
    errors = response.json()["errors"]
    assert [error["field"] for error in errors] == [field]
    assert all(set(error) == {"message", "field", "help"} for error in errors)
    assert sandbox.mails == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_refuses_a_body_that_is_no_json_object(sandbox: Sandbox, body: bytes) -> None:
    headers = {"Authorization": "Bearer any", "Content-Type": "application/json"}
    response = requests.post(f"{sandbox.api_url}mail/send", data=body, headers=headers, timeout=PATIENCE)
    assert response.status_code == 400
    assert response.json()["errors"][0]["message"]


def test_refuses_a_request_without_a_key(sandbox: Sandbox, send: Send) -> None:
    response = send(key="")
    assert response.status_code == 401
    assert response.json()["errors"][0]["message"]
    assert sandbox.mails == []


def test_refuses_another_key_than_the_one_it_was_given(sandbox: Sandbox, send: Send) -> None:
    sandbox.api_key = "right"
    assert [send(key="wrong").status_code, send(key="right").status_code] == [401, 202]


def test_refuses_another_content_type(sandbox: Sandbox) -> None:
    response = requests.post(
        f"{sandbox.api_url}mail/send",
        data=json.dumps(payload()),
        headers={"Authorization": "Bearer any", "Content-Type": "text/plain"},
        timeout=PATIENCE,
    )
    assert response.status_code == 415


def test_refuses_a_body_that_is_too_large(sandbox: Sandbox) -> None:
    response = requests.post(
        f"{sandbox.api_url}mail/send",
        data=b"x" * (MAX_BODY + 1),
        headers={"Authorization": "Bearer any", "Content-Type": "application/json"},
        timeout=PATIENCE,
    )
    assert response.status_code == 413


def test_refuses_to_be_read_from_send(sandbox: Sandbox) -> None:
    assert requests.get(f"{sandbox.api_url}mail/send", timeout=PATIENCE).status_code == 405


def test_serves_many_sends_over_one_connection(sandbox: Sandbox, send: Send) -> None:
    assert {send().status_code for _ in range(20)} == {202}
    assert sandbox.stats()["connections"] == 1


def test_counts_a_notification_that_it_accepted_twice(sandbox: Sandbox, send: Send) -> None:
    send(notification_id="once")
    send(notification_id="twice")
    send(notification_id="twice")
    sandbox.fail(times=1)
    send(notification_id="never")
    assert sandbox.stats()["doubled"] == {"twice": 2}
    assert sandbox.mailbox.counts() == {"once": (1, 1), "twice": (2, 2), "never": (1, 0)}
    assert sum(sandbox.stats()["requests_per_second"].values()) == 4


def test_lets_go_of_old_mails_but_not_of_their_counts(client: requests.Session) -> None:
    with Sandbox(max_mails=2) as sandbox:
        for number in range(3):
            client.post(
                f"{sandbox.api_url}mail/send",
                json=payload(notification_id=f"n-{number}"),
                headers={"Authorization": "Bearer any"},
                timeout=PATIENCE,
            )
        assert [mail.notification_id for mail in sandbox.mails] == ["n-1", "n-2"]
        assert sandbox.mailbox.counts()["n-0"] == (1, 1)
        assert sandbox.stats()["accepted"] == 3


def test_bounds_the_bytes_that_it_keeps(client: requests.Session) -> None:
    with Sandbox(max_bytes=2000) as sandbox:
        for _ in range(5):
            client.post(
                f"{sandbox.api_url}mail/send",
                json=payload(),
                headers={"Authorization": "Bearer any"},
                timeout=PATIENCE,
            )
        kept = sum(len(mail.raw) for mail in sandbox.mails)
        assert 0 < kept <= 2000
        assert sandbox.stats()["accepted"] == 5


def test_stops_listening_when_it_is_left() -> None:
    with Sandbox() as sandbox:
        port = sandbox.port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)
