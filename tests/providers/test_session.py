"""The one connection to a provider: kept, opened again when it ended, honest about what can have arrived."""

from __future__ import annotations

import datetime as dt
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from local.machine import free_port
from notifications.providers.session import NeverConnected, Session, make_session
from tests.kit.words import session as module


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    connections = 0
    requests: list[tuple[str, str, bytes]] = []
    after: str = ""

    def setup(self) -> None:
        type(self).connections += 1
        super().setup()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).requests.append((self.path, self.headers.get("X-Key", ""), body))
        match self.after:
            case "hang":
                threading.Event().wait(0.5)
                return
            case "reset":
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
        self.send_response(202)
        self.send_header("X-Message-Id", "m1")
        if self.after == "close":
            self.send_header("Connection", "close")
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write("süß".encode()[:4])
        if self.after == "end":  # without having said so
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    Handler.connections, Handler.requests, Handler.after = 0, [], ""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def session() -> Iterator[Session]:
    made = Session(headers={"User-Agent": "test"})
    yield made
    made.close()


def post(
    session: Session, server: ThreadingHTTPServer, scheme: str = "http", **fields: object
) -> requests.Response:
    return session.request(
        **{  # type: ignore[arg-type]
            "method": "POST",
            "url": f"{scheme}://127.0.0.1:{server.server_port}/v3/send?a=1",
            "data": "{}",
            "headers": {"X-Key": "k"},
            "timeout": (0.5, 0.3),
            "params": None,
            "files": None,
            "auth": None,
        }
        | fields
    )


def test_an_answer_is_what_requests_would_give(session, server):
    answer = post(session, server, data="ü")
    assert isinstance(answer, requests.Response) and answer.ok and answer.status_code == 202
    assert answer.headers["x-message-id"] == "m1" and answer.content == "süß".encode()[:4]
    assert answer.reason == "Accepted" and answer.url.endswith("/v3/send?a=1")
    assert Handler.requests == [("/v3/send?a=1", "k", "ü".encode())]


def test_a_connection_is_kept(session, server):
    for _ in range(5):
        post(session, server)
    assert Handler.connections == 1 and len(Handler.requests) == 5


@pytest.mark.parametrize("after", ["close", "end"])
def test_a_connection_that_the_other_side_ended_is_opened_again_unnoticed(session, server, after):
    Handler.after = after
    for _ in range(3):
        assert post(session, server).status_code == 202
        threading.Event().wait(0.05)
    assert Handler.connections == 3 and len(Handler.requests) == 3


def test_nobody_there_means_never_connected(session, server):
    with pytest.raises(NeverConnected):
        post(session, server, url=f"http://127.0.0.1:{free_port()}/")
    with pytest.raises(NeverConnected):
        post(session, server, url="http://no-such-host.invalid/")


def test_no_answer_in_time_is_a_read_timeout_and_the_next_has_a_connection_of_its_own(session, server):
    Handler.after = "hang"
    with pytest.raises(requests.ReadTimeout):
        post(session, server)
    Handler.after = ""
    assert post(session, server).status_code == 202 and Handler.connections == 2


def test_a_broken_connection_is_an_error_that_does_not_say_never_connected(session, server):
    Handler.after = "reset"
    with pytest.raises(requests.ConnectionError) as caught:
        post(session, server)
    assert not isinstance(caught.value, NeverConnected)


def test_another_host_gets_another_connection(session, server):
    post(session, server)
    post(session, server, url=f"http://localhost:{server.server_port}/")
    assert Handler.connections == 2


def test_behind_a_proxy_it_stays_with_requests(monkeypatch):
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.com:3128")
    assert make_session(url="https://api.sendgrid.com/v3/", headers={}) is None
    monkeypatch.setenv("NO_PROXY", "api.sendgrid.com")
    made = make_session(url="https://api.sendgrid.com/v3/", headers={})
    assert made is not None


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a self-signed certificate for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return folder / "cert.pem", folder / "key.pem"


class TestTls:
    @pytest.fixture(autouse=True)
    def over_tls(self, server, tmp_path, monkeypatch):
        cert, key = certificate(tmp_path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None
        module._tls.cache_clear()
        yield cert
        module._tls.cache_clear()

    def test_a_certificate_that_nobody_signed_is_refused_before_anything_is_sent(self, session, server):
        with pytest.raises(NeverConnected, match="certificate verify failed"):
            post(session, server, "https")
        assert Handler.requests == []

    def test_one_that_the_environment_trusts_is_taken(self, session, server, over_tls, monkeypatch):
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(over_tls))
        assert post(session, server, "https").status_code == 202
        assert post(session, server, "https").status_code == 202
        assert Handler.connections == 1
