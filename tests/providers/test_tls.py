"""TLS that breaks: before the request nothing was sent; after it the provider may have the e-mail."""

from __future__ import annotations

import os
import socket
import socketserver
import ssl
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.certificates import make_authority
from tests.kit.mails import make_mail
from tests.kit.providers import close
from tests.kit.waiting import PATIENCE
from tests.kit.words import PROVIDERS, Outcome, Verdict

pytestmark = pytest.mark.django_db
#: An encrypted record that nobody can decrypt.
BAD_RECORD = b"\x17\x03\x03\x00\x40" + bytes(64)
WAYS = ("garbage", "reset", "hang")


class Server(socketserver.ThreadingTCPServer):
    """Reads a request and breaks: in the handshake, or `after` all was read.

    It is also a proxy that leads to itself.
    """

    allow_reuse_address = daemon_threads = True

    def __init__(self, key: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(key)
        self.way, self.after = "garbage", True
        self.taken = 0
        self.ended = threading.Event()

    def handle_error(self, *_: object) -> None:
        """Say nothing of a client that hangs up."""


class Handler(socketserver.BaseRequestHandler):
    server: Server
    request: socket.socket

    def handle(self) -> None:
        first = self.request.recv(8, socket.MSG_PEEK)
        if first.startswith(b"CONNECT"):
            self.read_until(b"\r\n\r\n")
            self.request.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        self.encrypt()
        head, _, body = self.read_until(b"\r\n\r\n").partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        while len(body) < length:
            body += self.request.recv(65536)
        self.server.taken += 1
        self.break_off()

    def finish(self) -> None:
        self.request.close()

    def encrypt(self) -> None:
        if not self.server.after:
            self.request.recv(5)  # the beginning of the client's hello
            self.break_off()
            raise ConnectionAbortedError
        self.request = self.server.context.wrap_socket(self.request, server_side=True)

    def read_until(self, end: bytes) -> bytes:
        read = b""
        while end not in read:
            chunk = self.request.recv(65536)
            if not chunk:
                raise ConnectionAbortedError
            read += chunk
        return read

    def break_off(self) -> None:
        """Go on below TLS."""
        raw = socket.socket(fileno=os.dup(self.request.fileno()))
        match self.server.way:
            case "garbage":
                raw.sendall(BAD_RECORD if self.server.after else b"220 this is no TLS\r\n" * 10)
            case "reset":
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                os.close(self.request.detach())
        if self.server.way != "reset":
            self.server.ended.wait(PATIENCE)
        raw.close()


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> tuple[Path, Path]:
    """Return files with an authority, and with a server's key and its certificate."""
    folder = tmp_path_factory.mktemp("tls")
    paths = folder / "authority.pem", folder / "server.pem"
    for path, pem in zip(paths, make_authority(), strict=True):
        path.write_text(pem)
    return paths


@pytest.fixture
def server(keys, settings, monkeypatch) -> Iterator[Server]:
    """Start a server that everybody trusts, and configure every provider with it."""
    with Server(keys[1]) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        url = f"https://127.0.0.1:{server.server_address[1]}"
        for name in ("REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE", "SSL_CERT_FILE"):
            monkeypatch.setenv(name, str(keys[0]))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        for name in ("NO_PROXY", "no_proxy", "HTTPS_PROXY", "https_proxy"):
            monkeypatch.delenv(name, raising=False)
        settings.AWS_REGION = "eu-central-1"
        monkeypatch.setenv("AWS_ENDPOINT_URL_SESV2", url)
        settings.EMAIL_CONNECT_TIMEOUT = settings.EMAIL_READ_TIMEOUT = 1
        settings.ANYMAIL = settings.ANYMAIL | {
            "SENDGRID_API_URL": f"{url}/v3/",
            "SENDGRID_API_KEY": "test",
            "REQUESTS_TIMEOUT": (1, 1),
        }
        close()
        yield server
        close()
        server.ended.set()
        server.shutdown()


def send(name: str) -> Outcome:
    return PROVIDERS[name].send(make_mail())


@pytest.fixture(params=["directly", "through a proxy"])
def route(request, server, monkeypatch) -> None:
    if request.param == "through a proxy":
        for name in ("HTTPS_PROXY", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{server.server_address[1]}")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["sendgrid", "ses"])
@pytest.mark.usefixtures("route")
def test_after_the_request_it_is_ambiguous(server, name, way):
    server.way = way
    outcome = send(name)
    assert (outcome.verdict, server.taken) == (Verdict.AMBIGUOUS, 1), outcome


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["sendgrid", "ses"])
@pytest.mark.usefixtures("route")
def test_in_the_handshake_it_is_not_connected(server, name, way):
    server.way, server.after = way, False
    outcome = send(name)
    assert (outcome.verdict, server.taken) == (Verdict.UNREACHABLE, 0), outcome


@pytest.mark.parametrize("name", ["sendgrid", "ses"])
@pytest.mark.usefixtures("route")
def test_a_certificate_that_is_not_trusted_is_not_connected(server, name, monkeypatch):
    for variable in ("REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(variable)
    close()
    outcome = send(name)
    assert (outcome.verdict, server.taken) == (Verdict.UNREACHABLE, 0), outcome


@pytest.mark.parametrize("reply", ["220 this is no TLS", "reset", "hang"])
def test_in_the_handshake_of_starttls_it_is_not_connected(smtp, settings, reply):
    settings.EMAIL_USE_TLS = True
    smtp.replies |= {"EHLO": "250-here\r\n250 STARTTLS", "HELLO": reply}
    outcome = send("smtp")
    assert (outcome.verdict, smtp.messages) == (Verdict.UNREACHABLE, []), outcome
