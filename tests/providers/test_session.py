"""The one connection to a provider: kept, opened again when it ended, honest about what can have arrived."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from local.machine import free_port
from notifications.providers.session import NeverConnected, Session, make_session
from tests.kit.certificates import make_server_context
from tests.kit.http import serve
from tests.kit.providers import close


class Far:
    """The other side: it counts connections and requests, and ends them as `after` says."""

    url: str

    def __init__(self) -> None:
        self.connections = 0
        self.requests: list[tuple[str, str, bytes]] = []
        self.after = ""

    def connected(self) -> None:
        self.connections += 1

    def answer(self, path: str, headers: Any, body: bytes) -> tuple[int, Any, dict[str, str]]:
        self.requests.append((path, headers.get("X-Key", ""), body))
        if self.after == "hang":
            threading.Event().wait(0.5)
        if self.after in ("hang", "reset"):
            raise ConnectionResetError
        ends = {"close": {"Connection": "close"}, "end": {"X-Hang-Up": ""}}.get(self.after, {})
        return 202, "süß", {"X-Message-Id": "m1"} | ends


@pytest.fixture
def far() -> Iterator[Far]:
    other = Far()
    with serve(other.answer, read=bytes, on_connection=other.connected) as other.url:
        yield other


@pytest.fixture
def session() -> Iterator[Session]:
    made = Session(headers={"User-Agent": "test"})
    yield made
    made.close()


def post(session: Session, far: Far, **fields: object) -> requests.Response:
    return session.request(
        **{  # type: ignore[arg-type]
            "method": "POST",
            "url": f"{far.url}/v3/send?a=1",
            "data": "{}",
            "headers": {"X-Key": "k"},
            "timeout": (0.5, 0.3),
            "params": None,
            "files": None,
            "auth": None,
        }
        | fields
    )


def test_an_answer_is_what_requests_would_give(session, far):
    answer = post(session, far, data="ü")
    assert isinstance(answer, requests.Response) and answer.ok and answer.status_code == 202
    assert answer.headers["x-message-id"] == "m1" and answer.json() == "süß"
    assert answer.reason == "Accepted" and answer.url.endswith("/v3/send?a=1")
    assert far.requests == [("/v3/send?a=1", "k", "ü".encode())]


def test_a_connection_is_kept(session, far):
    for _ in range(5):
        post(session, far)
    assert far.connections == 1 and len(far.requests) == 5


@pytest.mark.parametrize("after", ["close", "end"])
def test_a_connection_that_the_other_side_ended_is_opened_again_unnoticed(session, far, after):
    far.after = after
    for _ in range(3):
        assert post(session, far).status_code == 202
        threading.Event().wait(0.05)
    assert far.connections == 3 and len(far.requests) == 3


def test_nobody_there_means_never_connected(session, far):
    with pytest.raises(NeverConnected):
        post(session, far, url=f"http://127.0.0.1:{free_port()}/")
    with pytest.raises(NeverConnected):
        post(session, far, url="http://no-such-host.invalid/")


def test_no_answer_in_time_is_a_read_timeout_and_the_next_has_a_connection_of_its_own(session, far):
    far.after = "hang"
    with pytest.raises(requests.ReadTimeout):
        post(session, far)
    far.after = ""
    assert post(session, far).status_code == 202 and far.connections == 2


def test_a_broken_connection_is_an_error_that_does_not_say_never_connected(session, far):
    far.after = "reset"
    with pytest.raises(requests.ConnectionError) as caught:
        post(session, far)
    assert not isinstance(caught.value, NeverConnected)


def test_another_host_gets_another_connection(session, far):
    post(session, far)
    post(session, far, url=far.url.replace("127.0.0.1", "localhost"))
    assert far.connections == 2


def test_behind_a_proxy_it_stays_with_requests(monkeypatch):
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.com:3128")
    assert make_session(url="https://api.sendgrid.com/v3/", headers={}) is None
    monkeypatch.setenv("NO_PROXY", "api.sendgrid.com")
    made = make_session(url="https://api.sendgrid.com/v3/", headers={})
    assert made is not None


class TestTls:
    @pytest.fixture
    def authority(self, tmp_path) -> Iterator[Path]:
        """Serve over TLS, and return the file of the authority that a client would have to trust."""
        self.far = Far()
        context, authority = make_server_context(folder=tmp_path)
        close()
        with serve(
            self.far.answer, read=bytes, tls=context, on_connection=self.far.connected
        ) as self.far.url:
            yield authority
        close()

    def test_a_certificate_that_nobody_signed_is_refused_before_anything_is_sent(self, session, authority):
        with pytest.raises(
            NeverConnected, match="the certificate is signed by an authority that is not trusted"
        ):
            post(session, self.far)
        assert self.far.requests == []

    def test_one_that_the_environment_trusts_is_taken(self, session, authority, monkeypatch):
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority))
        assert [post(session, self.far).status_code for _ in range(2)] == [202, 202]
        assert self.far.connections == 1
