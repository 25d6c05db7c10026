"""Errors arrive at Sentry, received over real HTTP."""

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
from tests.kit.waiting import PATIENCE
from tests.kit.words import version


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
    sent: list[dict[str, Any]] = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Here", (Handler,), {"events": sent}))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    before = sentry_sdk.get_client()
    sentry.init(dsn=f"http://key@127.0.0.1:{server.server_port}/1")
    yield sent
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(before)
    server.shutdown()
    server.server_close()


def test_a_line_at_error_is_an_event_with_its_fields_masked(events):
    structlog.get_logger("ours").error("no answer", recipient="alice@example.com", provider="sendgrid")
    sentry_sdk.flush(timeout=PATIENCE)
    (event,) = events
    assert (event["level"], event["logger"]) == ("error", "ours")
    message = event["logentry"]["message"]
    assert "no answer" in message and "sendgrid" in message
    assert "ali***@example.com" in message and "alice" not in json.dumps(event)


def test_an_event_names_the_release_unless_the_environment_names_another(events, monkeypatch):
    structlog.get_logger("test").error("here")
    monkeypatch.setenv("SENTRY_RELEASE", "shop@7.0.0")
    sentry.init(dsn=sentry_sdk.get_client().dsn)
    structlog.get_logger("test").error("there")
    sentry_sdk.flush(timeout=PATIENCE)
    assert [event["release"] for event in events] == [f"orderpost@{version()}", "shop@7.0.0"]
