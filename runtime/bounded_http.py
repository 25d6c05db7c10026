"""Ask a server over HTTP whose address a person typed, with bounds on what the server decides.

`requests` speaks HTTP. Left alone, it would read proxies and passwords from the environment, follow redirects
to anywhere, look up a name again after we checked its address, and wait for ever for a server that sends a
byte now and then.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import socket
import ssl
import threading
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

import certifi
import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from urllib3.exceptions import HTTPError

from runtime.faults import describe_fault
from runtime.ip_addresses import is_public

_CONNECT_SECONDS, _READ_SECONDS = 5.0, 30.0
_REDIRECTS = frozenset([301, 302, 303, 307, 308])
_MOST_REDIRECTS = 3
_HEADERS = {"Accept-Encoding": "identity", "Connection": "close", "User-Agent": "orderpost"}
_PORTS = {"http": 80, "https": 443}


class Unreachable(Exception):
    """No usable answer came. The text says why, and has no key in it."""


class NotInTime(Unreachable):
    """The answer was not complete in the time that the caller gave."""


class TooLong(Unreachable):
    """The answer has more bytes than the caller takes."""


class HttpAnswer(NamedTuple):
    status: int
    headers: Mapping[str, str]  # by name in any case
    body: bytearray

    @property
    def is_redirect(self) -> bool:
        return self.status in _REDIRECTS


class Call(NamedTuple):
    """A request. `server` is what the texts of errors call the one that is asked."""

    url: str
    server: str
    most_bytes: int  # of the answer, also of what gzip makes of it
    is_private_allowed: bool
    headers: Mapping[str, str]
    auth: AuthBase | None = None
    body: bytes | None = None  # None is a GET


def ask(call: Call, *, seconds: float) -> HttpAnswer:
    """Return the answer to a request. Follow no redirect. Raise `Unreachable`."""
    adapter = _CheckedAdapter(is_private_allowed=call.is_private_allowed)
    ends: queue.SimpleQueue[HttpAnswer | Exception] = queue.SimpleQueue()
    # In a thread, because the C library looks a name up for as long as it likes.
    threading.Thread(target=lambda: ends.put(_exchange(call, adapter)), daemon=True).start()
    try:
        end = ends.get(timeout=seconds)
    except queue.Empty:
        raise NotInTime(f"The {call.server} took longer than {seconds:.0f} s for an answer.") from None
    finally:
        adapter.cut()
    if isinstance(end, Exception):
        raise end
    return end


def follow_redirects(url: str, ask_once: Callable[[str], HttpAnswer], *, server: str) -> HttpAnswer:
    """Return the answer for an address, after a few redirects on its host. Raise `Unreachable`."""
    redirects = 0
    while True:
        answer = ask_once(url)
        if not answer.is_redirect or redirects >= _MOST_REDIRECTS:
            return answer
        redirects += 1
        url = _follow(url, answer.headers.get("Location", ""), server=server)


def _exchange(call: Call, adapter: _CheckedAdapter) -> HttpAnswer | Exception:
    """Return the answer to a request, or why there is none."""
    session = _OneAnswer()
    session.trust_env = False
    for scheme in _PORTS:
        session.mount(f"{scheme}://", adapter)
    try:
        with (
            session,
            session.request(
                "GET" if call.body is None else "POST",
                call.url,
                data=call.body,
                auth=call.auth,
                headers={**_HEADERS, **call.headers},
                stream=True,
                timeout=_READ_SECONDS,
                allow_redirects=False,
            ) as answer,
        ):
            return HttpAnswer(answer.status_code, answer.headers, _read(answer.raw, call))
    except (OSError, ValueError, zlib.error, HTTPError) as error:
        why = describe_fault(error, host=origin_of(call.url)[1]) or f"it broke off ({type(error).__name__})"
        return Unreachable(f"The connection to the {call.server} failed: {why}.")
    except Exception as error:  # noqa: BLE001 - the caller raises it
        return error


class _OneAnswer(requests.Session):
    def get_redirect_target(self, resp: requests.Response) -> None:
        """Return None. To follow no redirect, `requests` still parses its address and reads all its body."""


class _CheckedAdapter(HTTPAdapter):
    """Connects to a checked address. SNI and the check of the certificate stay those of the name."""

    def __init__(self, *, is_private_allowed: bool) -> None:
        self._is_private_allowed, self._is_cut = is_private_allowed, False
        self._sock: socket.socket | None = None
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, ssl_context=tls_context(), **options)

    def cert_verify(self, *_: Any) -> None:
        """Load no certificates, because the context has them."""

    def get_connection_with_tls_context(self, *arguments: Any, **options: Any) -> Any:
        pool = super().get_connection_with_tls_context(*arguments, **options)
        connect = {"_new_conn": lambda connection: self._connect(connection.host, connection.port)}
        pool.ConnectionCls = type("Connection", (pool.ConnectionCls,), connect)
        return pool

    def _connect(self, host: str, port: int) -> socket.socket:
        """Connect to an address of the host. None may be private, unless that is allowed."""
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        if not self._is_private_allowed and not all(is_public(str(answer[4][0])) for answer in answers):
            raise Unreachable(f"{host} is a private address, which CONNECTIONS_PRIVATE does not allow.")
        failure: OSError = OSError("no address")
        for family, kind, protocol, _, place in answers:
            sock = socket.socket(family, kind, protocol)
            sock.settimeout(_CONNECT_SECONDS)
            try:
                sock.connect(place)
            except OSError as error:
                sock.close()
                failure = error
                continue
            self._sock = sock.dup()  # TLS takes over the other one
            if self._is_cut:
                self.cut()
            return sock
        raise failure

    def cut(self) -> None:
        """Shut down the connection, or the one that comes. A server that drips would never time out."""
        self._is_cut = True
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            self._sock.close()


def _read(raw: Any, call: Call) -> bytearray:
    """Read a body, also one of gzip, which nobody asked for and not every server names in a header."""
    body, unzip, most = bytearray(), None, call.most_bytes
    while (unzip is None or not unzip.eof) and (chunk := raw.read(2**16, decode_content=False)):
        if not body and unzip is None and chunk.startswith(b"\x1f\x8b"):
            unzip = zlib.decompressobj(31)
        # Of what gzip makes of a chunk, no more than tells that it is too much.
        body += chunk if unzip is None else unzip.decompress(chunk, most + 1 - len(body))
        if len(body) > most:
            raise TooLong(f"An answer of the {call.server} has more than {most:,} bytes.")
    if unzip is not None and not unzip.eof:
        raise zlib.error
    return body


def origin_of(url: str) -> tuple[str, str, int]:
    """Return the scheme, host and port of an address. Raise `ValueError` for what is none."""
    parts = urlsplit(url)
    port = _PORTS.get(parts.scheme, 1) if parts.port is None else parts.port
    if not parts.hostname or not port or parts.username is not None:
        raise ValueError
    return parts.scheme, parts.hostname, port


def _follow(url: str, location: str, *, server: str) -> str:
    """Return where a redirect leads. The key goes to no other host or port, except from http to https."""
    try:
        to = urljoin(url, location)
        here, there = origin_of(url), origin_of(to)
    except ValueError:
        raise Unreachable(f"The {server} redirects to an invalid address.") from None
    is_upgrade = (here[0], there[0], here[1]) == ("http", "https", there[1])
    if here != there and not is_upgrade:
        raise Unreachable(f"The {server} redirects to {there[1][:100]}. If that is right, enter its address.")
    return to


@functools.cache
def tls_context() -> ssl.SSLContext:
    """Return a context with the certificates that requests would trust."""
    bundle = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    if bundle and os.path.isdir(bundle):  # noqa: PTH112
        return ssl.create_default_context(capath=bundle)
    return ssl.create_default_context(cafile=bundle or certifi.where())
