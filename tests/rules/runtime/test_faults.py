"""Why another server did not answer, in words, and whether this machine was too busy to tell."""

from __future__ import annotations

import smtplib
import socket
import ssl

import pytest
import requests

from notifications.providers.session import NeverConnected, Session
from runtime import lateness as lateness_module
from runtime.faults import describe_fault
from runtime.lateness import Lateness


def expired() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = 10, "certificate has expired"
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (expired(), "the certificate has expired"),
        (socket.gaierror(-2, "Name or service not known"), "the name mail.example.com does not resolve"),
        (TimeoutError("timed out"), "no answer within 10 s"),
        (ConnectionRefusedError(111, "Connection refused"), "the connection is refused"),
        (ConnectionResetError(104, "Connection reset by peer"), "the connection broke"),
        (ValueError("x"), None),
    ],
)
def test_an_error_is_told_in_words_also_as_the_cause_of_another(error, words):
    other = smtplib.SMTPServerDisconnected("Connection unexpectedly closed: timed out")
    other.__cause__ = error
    for each in (error, other):
        assert describe_fault(each, seconds=10, host="mail.example.com") == words


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://nope.invalid/v3", "the name nope.invalid does not resolve"),
        ("http://127.0.0.1:1/v3", "the connection is refused"),
    ],
)
def test_a_session_names_why_it_did_not_connect(url, words):
    session = Session(headers={})
    with pytest.raises(NeverConnected, match=words):
        session.request(method="POST", url=url, data="", headers={}, timeout=(1, 1))


def test_a_session_that_gets_no_answer_says_for_how_long(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v3"
        with pytest.raises(requests.ReadTimeout, match=r"no answer within 0\.2 s"):
            Session(headers={}).request(method="POST", url=url, data="", headers={}, timeout=(1, 0.2))


def test_a_machine_is_overloaded_if_a_thread_wakes_late_by_over_a_second_in_ten(monkeypatch):
    monkeypatch.setattr(lateness_module, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(Lateness, "watch", lambda self: None)
    lateness = Lateness()
    for late in (0.5, 0.4):
        lateness.note(late)
    assert not lateness.is_overloaded()
    lateness.note(0.2)
    assert lateness.is_overloaded()
