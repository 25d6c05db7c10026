"""Events are posted back as the providers post them."""

from __future__ import annotations

import base64
import json
import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import requests
from anymail.webhooks.sendgrid import SendGridTrackingWebhookView
from django.test import RequestFactory

from local.sandbox import Sandbox, WebhookSettings
from local.sandbox.webhooks import InvalidWebhookSettings
from tests.kit.sendgrid import Send
from tests.kit.waiting import PATIENCE, until
from tests.kit.words import make_key

WAIT = 10.0


class Receiver(ThreadingHTTPServer):
    """Our side of the webhook: keeps what is posted, and answers what it was told to, then 200."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ReceiverHandler)
        self.posts: queue.Queue[tuple[dict[str, str], bytes]] = queue.Queue()
        self.paths: list[str] = []
        self.statuses: list[int] = []
        self.url = f"http://127.0.0.1:{self.server_port}/webhooks"

    def events(self, *, count: int) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        while len(events) < count:
            events += json.loads(self.posts.get(timeout=WAIT)[1])
        return events


class ReceiverHandler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.paths.append(self.path)
        self.server.posts.put(({name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_stop_waits_for_the_post_in_flight(
    sandbox: Sandbox, send: Send, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the events of one test would come to the next one."""
    arrived, answer = threading.Event(), threading.Event()
    take = ReceiverHandler.do_POST

    def slowly(handler: ReceiverHandler) -> None:
        arrived.set()
        answer.wait(PATIENCE)
        take(handler)

    monkeypatch.setattr(ReceiverHandler, "do_POST", slowly)
    sandbox.webhooks.settings = WebhookSettings(url=receiver.url, delay=0)
    send()
    assert arrived.wait(PATIENCE)
    threading.Timer(0.2, answer.set).start()
    sandbox.webhooks.stop()
    assert sandbox.webhooks.stats()["posted"] > 0


def test_posts_processed_and_delivered_with_our_arguments_flat(
    sandbox: Sandbox, send: Send, receiver: Receiver
) -> None:
    sandbox.webhooks.settings = WebhookSettings(url=receiver.url, delay=0)
    message_id = send().headers["X-Message-Id"]
    events = receiver.events(count=2)
    assert [event["event"] for event in events] == ["processed", "delivered"]
    for event in events:
        assert event["sg_message_id"].split(".")[0] == message_id
        assert (event["notification_id"], event["order_id"]) == ("n-1", "o-1")
        assert (event["email"], event["event_type"]) == ("ada@example.com", "order.paid")
        assert event["smtp-id"] == "<n-1@example.com>"
        assert isinstance(event["timestamp"], int)
    assert len({event["sg_event_id"] for event in events}) == 2


def test_tells_of_a_mail_whose_answer_was_lost(sandbox: Sandbox, send: Send, receiver: Receiver) -> None:
    sandbox.webhooks.settings = WebhookSettings(url=receiver.url, delay=0)
    sandbox.fail(kind="accept_then_reset")
    with pytest.raises(requests.ConnectionError):
        send(notification_id="lost")
    assert {event["notification_id"] for event in receiver.events(count=2)} == {"lost"}


def test_remembers_of_which_mails_it_told_late(
    sandbox: Sandbox, send: Send, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.webhooks.settings = WebhookSettings(url=receiver.url, delay=0)
    send(notification_id="in time")
    until(lambda: sandbox.webhooks.stats()["posted"] == 2)
    monkeypatch.setattr("local.sandbox.webhooks.LATE_SECONDS", -60.0)
    send(notification_id="late")
    until(lambda: sandbox.webhooks.late())
    assert sandbox.webhooks.late().keys() == {"late"}


@pytest.mark.parametrize(
    ("outcome", "kinds", "last"),
    [
        ("bounce", ["processed", "bounce"], {"type": "bounce", "status": "5.1.1"}),
        ("blocked", ["processed", "bounce"], {"type": "blocked"}),
        ("deferred", ["processed", "deferred"], {"attempt": "1"}),
        ("spamreport", ["processed", "delivered", "spamreport"], {"event": "spamreport"}),
    ],
)
def test_lets_a_recipient_bounce_or_complain(
    sandbox: Sandbox,
    send: Send,
    receiver: Receiver,
    outcome: str,
    kinds: list[str],
    last: dict[str, str],
) -> None:
    sandbox.webhooks.settings = WebhookSettings(url=receiver.url, delay=0, recipients={"^ada@": outcome})
    send(to="ada@example.com")
    events = receiver.events(count=len(kinds))
    assert [event["event"] for event in events] == kinds
    assert last.items() <= events[-1].items()


def test_drops_a_recipient_without_processing(sandbox: Sandbox, send: Send, receiver: Receiver) -> None:
    sandbox.webhooks.settings = WebhookSettings(url=receiver.url, delay=0, recipients={"ada": "dropped"})
    send(to="ada@example.com")
    assert [event["event"] for event in receiver.events(count=1)] == ["dropped"]


def test_posts_only_the_events_that_were_asked_for_and_as_often(
    sandbox: Sandbox, send: Send, receiver: Receiver
) -> None:
    settings = WebhookSettings(url=receiver.url, delay=0, events=("delivered",), repeat=3, reorder=True)
    sandbox.webhooks.settings = settings
    send()
    assert [event["event"] for event in receiver.events(count=3)] == ["delivered"] * 3


def test_posts_again_what_was_not_taken_under_new_event_ids(
    sandbox: Sandbox, send: Send, receiver: Receiver
) -> None:
    receiver.statuses = [500]
    sandbox.webhooks.settings = WebhookSettings(url=receiver.url, delay=0, events=("delivered",))
    send()
    first, second = receiver.events(count=2)
    assert first.pop("sg_event_id") != second.pop("sg_event_id")
    assert first == second


def test_signs_as_sendgrid_does(sandbox: Sandbox, send: Send, receiver: Receiver) -> None:
    signs, verifies = make_key()
    sandbox.webhooks.settings = WebhookSettings(url=receiver.url, delay=0, keys={"sendgrid": signs})
    send()
    headers, body = receiver.posts.get(timeout=WAIT)
    post = RequestFactory().post("/", body, "application/json", headers=headers)
    SendGridTrackingWebhookView(tracking_webhook_verification_key=verifies).run_validators(post)


def test_each_provider_posts_to_an_address_of_its_own(
    sandbox: Sandbox, send: Send, receiver: Receiver
) -> None:
    keys = {"postmark": "user:password"}
    sandbox.webhooks.settings = WebhookSettings(url=receiver.url, delay=0, events=("delivered",), keys=keys)
    send()
    assert receiver.events(count=1)[0]["event"] == "delivered"
    recipient = "Ada <ada@example.com>"
    mail: dict[str, Any] = {"From": "orders@example.com", "To": recipient, "Subject": "S", "TextBody": "T"}
    mail |= {"Metadata": {"notification_id": "n-2"}}
    token = {"X-Postmark-Server-Token": "any"}
    answer = requests.post(f"{sandbox.url}/email", json=mail, headers=token, timeout=PATIENCE).json()
    headers, body = receiver.posts.get(timeout=WAIT)
    told = json.loads(body)
    assert (told["RecordType"], told["MessageID"]) == ("Delivery", answer["MessageID"])
    assert (told["Recipient"], told["Metadata"]) == ("ada@example.com", {"notification_id": "n-2"})
    assert base64.b64decode(headers["authorization"].removeprefix("Basic ")) == b"user:password"
    assert receiver.paths == ["/webhooks/sendgrid", "/webhooks/postmark"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "file:///etc/hosts"},
        {"url": "http://a", "events": ["exploded"]},
        {"url": "http://a", "events": [[]]},
        {"url": "http://a", "delay": "1"},
        {"url": "http://a", "probability": -1},
        {"url": "http://a", "repeat": 0},
        {"url": "http://a", "reorder": 1},
        {"url": "http://a", "recipients": {"(": "bounce"}},
        {"url": "http://a", "recipients": {"a": []}},
        {"url": "http://a", "keys": {"sendgrid": 5}},
    ],
)
def test_refuses_settings_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidWebhookSettings):
        WebhookSettings(**wrong)
