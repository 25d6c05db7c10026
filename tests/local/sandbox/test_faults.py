"""Each fault looks to a client as it would from the real provider, and ends when it is healed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import requests

from local.sandbox import Fault, Sandbox
from local.sandbox.faults import InvalidFault
from tests.kit.certificates import make_server_context
from tests.kit.sendgrid import Send, payload
from tests.kit.waiting import PATIENCE, until

ANY_KEY = {"Authorization": "Bearer any"}
SOON = 0.2  # a client's patience where it must run out


def test_answers_a_status_with_its_headers(sandbox: Sandbox, send: Send) -> None:
    sandbox.fail(status=429, headers={"Retry-After": "7"})
    response = send()
    assert (response.status_code, response.headers["Retry-After"]) == (429, "7")
    assert response.json()["errors"][0]["message"] == "too many requests"
    assert sandbox.mails == []


@pytest.mark.parametrize("status", [204, 299, 304, 404, 503, 529, 599])
def test_goes_on_over_the_same_connection_after_a_status(sandbox: Sandbox, send: Send, status: int) -> None:
    sandbox.fail(status=status, times=1)
    assert [send().status_code, send().status_code] == [status, 202]
    assert sandbox.stats()["connections"] == 1


def test_meets_only_the_recipients_that_fit(sandbox: Sandbox, send: Send) -> None:
    sandbox.fail(to=r"@broken\.")
    assert send(to="a@broken.example").status_code == 503
    assert send(to="a@works.example").status_code == 202


def test_meets_as_many_requests_as_it_was_told(sandbox: Sandbox, send: Send) -> None:
    fault = sandbox.fail(times=2)
    assert [send().status_code for _ in range(4)] == [503, 503, 202, 202]
    assert fault.met == 2
    assert sandbox.faults.all() == []


def test_meets_nothing_with_probability_zero_and_falls_through_to_the_next(
    sandbox: Sandbox, send: Send
) -> None:
    sandbox.fail(probability=0)
    assert send().status_code == 202
    sandbox.fail(status=500)
    assert send().status_code == 500


def test_resets_the_connection_and_takes_nothing(sandbox: Sandbox, send: Send) -> None:
    sandbox.fail(kind="reset")
    with pytest.raises(requests.ConnectionError, match="reset by peer"):
        send()
    assert sandbox.mails == []
    assert sandbox.stats()["answers"] == {"reset": 1}


def test_takes_the_mail_and_resets_the_connection(sandbox: Sandbox, send: Send) -> None:
    sandbox.fail(kind="accept_then_reset", times=1)
    with pytest.raises(requests.ConnectionError, match="reset by peer"):
        send()
    assert sandbox.mailbox.counts() == {"n-1": (1, 1)}


def test_takes_the_mail_and_answers_as_a_gateway_that_lost_the_answer(sandbox: Sandbox, send: Send) -> None:
    sandbox.fail(kind="accept_then_status", status=504, times=1)
    assert [send().status_code, send().status_code] == [504, 202]
    assert sandbox.mailbox.counts() == {"n-1": (2, 2)}
    assert sandbox.mailbox.lost_answers() == {"n-1": 1}


@pytest.mark.parametrize(("kind", "accepted"), [("garbage", 0), ("accept_then_garbage", 1)])
def test_writes_garbage_below_tls_after_it_read_the_request(tmp_path: Path, kind: Any, accepted: int) -> None:
    context, authority = make_server_context(folder=tmp_path)
    with Sandbox(tls=context) as sandbox, requests.Session() as client:

        def send() -> int:
            url = f"{sandbox.api_url}mail/send"
            options: Any = {"headers": ANY_KEY, "timeout": 5, "verify": str(authority)}
            return client.post(url, json=payload(), **options).status_code

        assert send() == 202
        sandbox.fail(kind=kind, times=1)
        with pytest.raises(requests.exceptions.SSLError, match=r"WRONG_VERSION_NUMBER|record"):
            send()
        assert sandbox.mailbox.counts() == {"n-1": (2, 1 + accepted)}
        assert send() == 202


def test_does_not_take_a_bad_mail_before_it_resets(sandbox: Sandbox, send: Send) -> None:
    sandbox.fail(kind="accept_then_reset")
    assert send(subject="").status_code == 400


@pytest.mark.parametrize(("kind", "accepted"), [("hang", 0), ("accept_then_hang", 1)])
def test_hangs(sandbox: Sandbox, send: Send, kind: Any, accepted: int) -> None:
    sandbox.fail(kind=kind)
    with pytest.raises(requests.ReadTimeout):
        send(timeout=SOON)
    assert sandbox.wait_for(accepted=accepted)
    assert sandbox.stats()["accepted"] == accepted


def test_lets_a_hanging_request_go_without_an_answer_when_healed(sandbox: Sandbox, send: Send) -> None:
    fault = sandbox.fail(kind="hang", times=1, seconds=60)

    def heal_once_met() -> None:
        until(lambda: fault.met, "the request hangs")
        sandbox.heal()

    healer = threading.Thread(target=heal_once_met)
    healer.start()
    with pytest.raises(requests.ConnectionError, match="closed connection"):
        send(timeout=PATIENCE)
    healer.join()
    assert send().status_code == 202


def test_answers_a_slow_request_as_usual(sandbox: Sandbox, send: Send) -> None:
    sandbox.fail(kind="slow", seconds=SOON)
    response = send()
    assert response.status_code == 202
    assert response.elapsed.total_seconds() >= SOON


def test_holds_every_answer_back_by_the_latency(sandbox: Sandbox, send: Send) -> None:
    sandbox.latency_seconds = SOON
    assert send().elapsed.total_seconds() >= SOON


def test_refuses_connections_until_healed(sandbox: Sandbox, send: Send) -> None:
    assert send().status_code == 202
    url = sandbox.url
    sandbox.fail(kind="refuse", seconds=60)
    with pytest.raises(requests.ConnectionError, match="Connection refused"):
        send()
    sandbox.heal()
    assert sandbox.url == url
    assert send().status_code == 202


def test_listens_again_by_itself_after_its_seconds(sandbox: Sandbox, send: Send) -> None:
    sandbox.fail(kind="refuse", seconds=0.1)
    until(lambda: _status(send) == 202)
    assert sandbox.faults.all() == []


def test_answers_the_request_that_makes_it_refuse(sandbox: Sandbox, send: Send) -> None:
    url = f"{sandbox.url}/control/faults"
    assert requests.post(url, json={"kind": "refuse", "seconds": 60}, timeout=PATIENCE).status_code == 201
    until(lambda: _status(send) is None)
    sandbox.heal()
    assert send().status_code == 202


def _status(send: Send) -> int | None:
    """None when nobody listens."""
    try:
        return send().status_code
    except requests.ConnectionError as error:
        return None if "refused" in str(error) else 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "explode"},
        {"status": 99},
        {"status": True},
        {"probability": 2},
        {"probability": float("nan")},
        {"times": 0},
        {"seconds": -1},
        {"to": "("},
        {"headers": {"A": "b\r\nC: d"}},
        {"kind": "refuse", "times": 1},
        {"kind": ["status"]},
        {"colour": "red"},
        [],
        None,
    ],
)
def test_refuses_a_fault_that_cannot_be(wrong: object) -> None:
    with pytest.raises(InvalidFault):
        Fault.from_json(wrong)


def test_is_broken_and_healed_over_http(sandbox: Sandbox, send: Send) -> None:
    url = f"{sandbox.url}/control/faults"
    made = requests.post(url, json={"status": 500, "to": "ada"}, timeout=PATIENCE)
    assert made.status_code == 201
    assert send().status_code == 500
    (fault,) = requests.get(url, timeout=PATIENCE).json()
    assert (fault["status"], fault["to"], fault["met"]) == (500, "ada", 1)
    json_type = {"Content-Type": "application/json"}
    assert requests.delete(url, headers=json_type, timeout=PATIENCE).json() == []
    assert send().status_code == 202


def test_refuses_a_bad_fault_over_http(sandbox: Sandbox) -> None:
    response = requests.post(f"{sandbox.url}/control/faults", json={"kind": "explode"}, timeout=PATIENCE)
    assert response.status_code == 400
    assert "kind must be" in response.json()["error"]


def test_refuses_a_change_that_a_foreign_web_page_could_make(sandbox: Sandbox) -> None:
    response = requests.post(f"{sandbox.url}/control/faults", data='{"status": 500}', timeout=PATIENCE)
    assert response.status_code == 415
    assert sandbox.faults.all() == []
