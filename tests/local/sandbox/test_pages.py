"""The pages show what came in, harmlessly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import requests

from local.sandbox import Sandbox
from tests.kit.sendgrid import Send
from tests.kit.waiting import PATIENCE

EVIL = "<script>alert(1)</script>\"'&"


def test_lists_the_newest_mail_first(sandbox: Sandbox, send: Send) -> None:
    send(subject="The first")
    send(subject="The second")
    page = requests.get(sandbox.url, timeout=PATIENCE).text
    assert 0 < page.index("The second") < page.index("The first")


@pytest.mark.parametrize(
    ("search", "is_listed"), [("ada@", True), ("o-1", True), ("PAID", True), ("bob", False)]
)
def test_searches_by_recipient_order_and_event(
    sandbox: Sandbox, send: Send, search: str, is_listed: bool
) -> None:
    send(subject="Hello")
    page = requests.get(f"{sandbox.url}/live", params={"q": search}, timeout=PATIENCE).text
    assert ("Hello" in page) is is_listed


def test_shows_one_mail_in_full(sandbox: Sandbox, send: Send) -> None:
    message_id = send(headers={"X-Shop": "one"}).headers["X-Message-Id"]
    page = requests.get(f"{sandbox.url}/mails/{message_id}", timeout=PATIENCE).text
    for shown in ("Your order is paid", "Thank you.", "X-Shop", "notification_id", "n-1", "<iframe sandbox"):
        assert shown in page


def test_escapes_everything_that_a_mail_brings(sandbox: Sandbox, send: Send) -> None:
    arguments = {"notification_id": EVIL, "order_id": EVIL, "event_type": EVIL}
    message_id = send(
        subject=EVIL,
        content=[{"type": "text/plain", "value": EVIL}, {"type": "text/html", "value": EVIL}],
        headers={"X-Evil": EVIL},
        custom_args=arguments,
    ).headers["X-Message-Id"]
    for path in ("/", f"/?q={EVIL}", f"/mails/{message_id}"):
        page = requests.get(sandbox.url + path, timeout=PATIENCE).text
        assert "&lt;script&gt;alert(1)" in page
        assert "<script>alert" not in page


def test_serves_a_mails_html_under_a_policy_that_runs_and_loads_nothing(sandbox: Sandbox, send: Send) -> None:
    message_id = send().headers["X-Message-Id"]
    response = requests.get(f"{sandbox.url}/mails/{message_id}/html", timeout=PATIENCE)
    assert response.text == "<p>Thank you.</p>"
    assert response.headers["Content-Security-Policy"].startswith("sandbox; default-src 'none';")


def test_shows_a_mail_with_half_a_character(sandbox: Sandbox, send: Send) -> None:
    message_id = send(subject="\ud800").headers["X-Message-Id"]
    assert requests.get(f"{sandbox.url}/mails/{message_id}", timeout=PATIENCE).status_code == 200


def test_says_what_is_broken(sandbox: Sandbox) -> None:
    assert "Provider is healthy" in requests.get(sandbox.url, timeout=PATIENCE).text
    sandbox.fail(status=503, to="ada", times=3)
    sandbox.fail(status=400, to="^refused-")
    text = requests.get(sandbox.url, timeout=PATIENCE).text
    assert "answers 503 for ada, 3 more times; answers 400 for refused-…<" in text


@pytest.mark.parametrize("path", ["/mails/none", "/mails/none/html", "/nothing", "/assets/../pages.py"])
def test_answers_404_where_nothing_is(sandbox: Sandbox, path: str) -> None:
    assert requests.get(sandbox.url + path, timeout=PATIENCE).status_code == 404


@pytest.mark.parametrize("name", ["page.css", "page.js"])
def test_serves_its_own_assets(sandbox: Sandbox, name: str) -> None:
    response = requests.get(f"{sandbox.url}/assets/{name}", timeout=PATIENCE)
    assert (response.status_code, response.headers["Content-Type"].split("/")[0]) == (200, "text")


def test_runs_as_a_process_until_sigterm() -> None:
    command = [sys.executable, "-m", "local.sandbox", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            assert requests.get(f"{url}/control/stats", timeout=PATIENCE).json()["requests"] == 0
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=PATIENCE) == 0
        finally:
            process.kill()
