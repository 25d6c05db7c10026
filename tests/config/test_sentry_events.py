"""What fails the same way is one event at Sentry, received over real HTTP."""

from __future__ import annotations

import gzip
import http.server
import itertools
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
import structlog

from config import sentry
from local.sandbox import Sandbox
from notifications.delivery import drain as delivery
from outbox.telemetry.release import version
from tests.factories import make_mails, statuses
from tests.notifications.test_delivery import sandbox  # noqa: F401 - a fixture

pytestmark = pytest.mark.django_db(transaction=True)


class Handler(http.server.BaseHTTPRequestHandler):
    """Keeps the events of the envelopes that are posted."""

    events: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        lines = [json.loads(line) for line in body.splitlines() if line]
        for header, item in itertools.pairwise(lines[1:]):
            if header.get("type") == "event":
                self.events.append(item)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def events() -> Iterator[list[dict[str, Any]]]:
    """Report to a server of the test for its duration."""
    found: list[dict[str, Any]] = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Here", (Handler,), {"events": found}))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    before = sentry_sdk.get_client()
    sentry.init(dsn=f"http://key@127.0.0.1:{server.server_port}/1", environment="test")
    yield found
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(before)
    server.shutdown()
    server.server_close()


def test_a_drain_in_which_200_emails_fail_alike_is_one_event(events, sandbox: Sandbox):  # noqa: F811
    sandbox.fail(kind="status", status=400)
    make_mails(200)
    delivery.drain_emails()
    sentry_sdk.flush(timeout=20)
    assert statuses() == {"dead_lettered": 200}
    (event,) = events
    assert (event["level"], event["logger"]) == ("error", "notifications.delivery.log")
    assert event["logentry"]["message"] == "notification changed"
    assert event["extra"]["outcome"] == "permanent" and event["extra"]["notification_id"]
    assert "@example.com" in event["extra"]["recipient"] and "***" in event["extra"]["recipient"]


def test_an_event_names_the_release_unless_the_environment_names_another(events, monkeypatch):
    structlog.get_logger("test").error("here")
    monkeypatch.setenv("SENTRY_RELEASE", "shop@7.0.0")
    sentry.init(dsn=sentry_sdk.get_client().dsn, environment="test")
    structlog.get_logger("test").error("there")
    sentry_sdk.flush(timeout=20)
    assert [event["release"] for event in events] == [f"orderpost@{version()}", "shop@7.0.0"]


def raise_error(number: int) -> None:
    """Raise the same error each time, with another text."""
    raise LookupError(f"row {number}")


def test_an_exception_in_many_rows_is_one_event_and_the_next_tells_how_many(events, monkeypatch):
    log = structlog.get_logger("ours")

    def fail(count: int) -> None:
        for number in range(count):
            try:
                raise_error(number)
            except LookupError:
                log.exception("sender failed", id=str(number))

    fail(200)
    try:
        raise KeyError("another place")
    except KeyError:
        log.exception("sender failed", id="x")
    monkeypatch.setattr(sentry, "QUIET_SECONDS", -1.0)  # ten minutes later
    fail(1)
    sentry_sdk.flush(timeout=20)
    assert [event["exception"]["values"][-1]["type"] for event in events] == [
        "LookupError",
        "KeyError",
        "LookupError",
    ]
    assert [event["extra"]["repeats"] for event in events] == [0, 0, 199]
    assert events[0]["extra"]["id"] == "0" and events[0]["logentry"]["message"] == "sender failed"
