"""Ask a shop over HTTP, with bounds on what the shop decides.

`requests` speaks HTTP. Left alone, it would read proxies and passwords from the environment, follow redirects
to anywhere, look up a name again after we checked its address, and wait for ever for a shop that sends a byte
now and then.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import math
import queue
import socket
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase, HTTPBasicAuth
from urllib3.exceptions import HTTPError
from urllib3.util import Retry

from notifications.providers.session import tls_context
from runtime.faults import describe_fault
from web.proxies import inner_ipv4

MOST_BYTES = 16_000_000  # of an answer, also of what gzip makes of it
ANSWER_SECONDS = 60.0
_CONNECT_SECONDS, _READ_SECONDS = 5.0, 30.0
_REDIRECTS = frozenset([301, 302, 303, 307, 308])
_MOST_REDIRECTS = 3
_MOST_PAUSES = 3
_LONGEST_PAUSE_SECONDS = 60.0
_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "Connection": "close",
    "User-Agent": "orderpost",
}
_PORTS = {"http": 80, "https": 443}
#: Python's `is_global` depends on its patch release. These are the special networks of IANA's registries,
#: what is not of the internet in IPv6, and the address where Azure's machines find their own secrets.
_SPECIAL = [
    ipaddress.ip_network(network)
    for network in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24"),
        *("192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24"),
        *("203.0.113.0/24", "224.0.0.0/3", "::/3", "2001::/23", "2001:db8::/32", "2002::/16"),
        *("2620:4f:8000::/48", "3fff::/20", "4000::/2", "8000::/1"),
    )
]


class ShopUnreachable(Exception):
    """The shop's orders cannot be read. The text says why, and has no key in it."""


class OutOfTime(ShopUnreachable):
    """The time that the caller gave is over. `place` is where a later reading goes on."""

    def __init__(self, text: str, *, place: Any = None) -> None:
        super().__init__(text)
        self.place = place


class ShopAnswer(NamedTuple):
    status: int
    headers: Mapping[str, str]  # by name in any case
    body: bytearray


class ShopApi:
    """Sends requests with a key and its secret, or with a token, until the time for all of them is over."""

    def __init__(
        self,
        *,
        key: str = "",
        secret: str = "",
        token: str = "",
        is_private_allowed: bool,
        seconds: float,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._auth: AuthBase = HTTPBasicAuth(key.encode(), secret.encode()) if key else _Bearer(token)
        self._is_private_allowed, self._sleep = is_private_allowed, sleep
        self._seconds, self._ends_at = seconds, time.monotonic() + seconds

    def get(self, url: str) -> ShopAnswer:
        """Return the shop's answer. Follow redirects on the host, and wait if the shop asks for it."""
        redirects = 0
        while True:
            answer = self._ask_patiently(url)
            if answer.status not in _REDIRECTS or redirects >= _MOST_REDIRECTS:
                return answer
            redirects += 1
            url = _follow(url, answer.headers.get("Location", ""))

    def post(self, url: str, document: Mapping[str, Any]) -> ShopAnswer:
        """Return the shop's answer to a question in JSON. It changes nothing there, so it may be repeated."""
        answer = self._ask_patiently(url, json.dumps(document).encode())
        if answer.status in _REDIRECTS:
            host = urlsplit(answer.headers.get("Location", "")).hostname or "another address"
            raise ShopUnreachable(f"The shop redirects to {host[:100]}. Enter the address of its API.")
        return answer

    def _ask_patiently(self, url: str, body: bytes | None = None) -> ShopAnswer:
        pauses = 0
        while True:
            self._check(url)
            answer = self._ask(url, body)
            if answer.status not in (429, 503) or pauses >= _MOST_PAUSES:
                return answer
            pauses += 1
            self._pause(answer.headers.get("Retry-After", ""))

    def _check(self, url: str) -> None:
        try:
            scheme, _, _ = _origin(url)
        except ValueError:
            raise ShopUnreachable("The shop's address is not like https://shop.example.") from None
        if scheme != "https" and not (scheme == "http" and self._is_private_allowed):
            raise ShopUnreachable("The shop's address must begin with https://.")

    def _pause(self, retry_after: str) -> None:
        try:
            seconds = max(1.0, Retry().parse_retry_after(retry_after))
        except (HTTPError, ValueError, OverflowError):
            seconds = 5.0
        if seconds > _LONGEST_PAUSE_SECONDS or time.monotonic() + seconds > self._ends_at:
            raise ShopUnreachable(f"The shop asks to wait {math.ceil(seconds)} s.")
        self._sleep(seconds)

    def _ask(self, url: str, body: bytes | None) -> ShopAnswer:
        seconds = min(ANSWER_SECONDS, self._ends_at - time.monotonic())
        if seconds <= 0:
            raise OutOfTime(f"The shop took longer than {self._seconds:.0f} s for all its orders.")
        adapter = _ShopAdapter(is_private_allowed=self._is_private_allowed)
        ends: queue.SimpleQueue[ShopAnswer | Exception] = queue.SimpleQueue()
        # In a thread, because the C library looks a name up for as long as it likes.
        threading.Thread(
            target=lambda: ends.put(_exchange(url, body, self._auth, adapter)), daemon=True
        ).start()
        try:
            end = ends.get(timeout=seconds)
        except queue.Empty:
            text = f"The shop took longer than {seconds:.0f} s for an answer."
            raise (ShopUnreachable if seconds >= ANSWER_SECONDS else OutOfTime)(text) from None
        finally:
            adapter.cut()
        if isinstance(end, Exception):
            raise end
        return end


class _Bearer(AuthBase):
    """Authorizes requests with a token, or not at all."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def _exchange(url: str, body: bytes | None, auth: AuthBase, adapter: _ShopAdapter) -> ShopAnswer | Exception:
    """Return the answer to a request, or why there is none."""
    method = "GET" if body is None else "POST"
    headers = _HEADERS if body is None else {**_HEADERS, "Content-Type": "application/json"}
    session = _ShopSession()
    session.trust_env = False
    for scheme in _PORTS:
        session.mount(f"{scheme}://", adapter)
    try:
        with (
            session,
            session.request(
                method,
                url,
                data=body,
                auth=auth,
                headers=headers,
                stream=True,
                timeout=_READ_SECONDS,
                allow_redirects=False,
            ) as answer,
        ):
            return ShopAnswer(answer.status_code, answer.headers, _read(answer.raw))
    except (OSError, ValueError, zlib.error, HTTPError) as error:
        why = describe_fault(error, host=_origin(url)[1]) or f"it broke off ({type(error).__name__})"
        return ShopUnreachable(f"The connection to the shop failed: {why}.")
    except Exception as error:  # noqa: BLE001 - the caller raises it
        return error


class _ShopSession(requests.Session):
    def get_redirect_target(self, resp: requests.Response) -> None:
        """Return None. To follow no redirect, `requests` still parses its address and reads all its body."""


class _ShopAdapter(HTTPAdapter):
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
            raise ShopUnreachable(f"{host} is a private address, which CONNECTIONS_PRIVATE does not allow.")
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
        """Shut down the connection, or the one that comes. A shop that drips would never time out."""
        self._is_cut = True
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            self._sock.close()


def is_public(address: str) -> bool:
    """Return whether an IP address is of the internet, also the IPv4 address inside one of IPv6.

    >>> is_public("8.8.8.8"), is_public("10.0.0.1"), is_public("::ffff:127.0.0.1")
    (True, False, False)
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and (inner := inner_ipv4(ip)) is not None:
        return is_public(str(inner))
    return ip.is_global and not any(ip in network for network in _SPECIAL)


def _read(raw: Any) -> bytearray:
    """Read a body, also one of gzip, which nobody asked for and not every server names in a header."""
    body, unzip = bytearray(), None
    while (unzip is None or not unzip.eof) and (chunk := raw.read(2**16, decode_content=False)):
        if not body and unzip is None and chunk.startswith(b"\x1f\x8b"):
            unzip = zlib.decompressobj(31)
        # Of what gzip makes of a chunk, no more than tells that it is too much.
        body += chunk if unzip is None else unzip.decompress(chunk, MOST_BYTES + 1 - len(body))
        if len(body) > MOST_BYTES:
            raise ShopUnreachable(f"An answer of the shop has more than {MOST_BYTES:,} bytes.")
    if unzip is not None and not unzip.eof:
        raise zlib.error
    return body


def _origin(url: str) -> tuple[str, str, int]:
    """Return the scheme, host and port of an address. Raise `ValueError` for what is none."""
    parts = urlsplit(url)
    port = _PORTS.get(parts.scheme, 1) if parts.port is None else parts.port
    if not parts.hostname or not port or parts.username is not None:
        raise ValueError
    return parts.scheme, parts.hostname, port


def _follow(url: str, location: str) -> str:
    """Return where a redirect leads. The key goes to no other host or port, except from http to https."""
    try:
        to = urljoin(url, location)
        here, there = _origin(url), _origin(to)
    except ValueError:
        raise ShopUnreachable("The shop redirects to an invalid address.") from None
    is_upgrade = (here[0], there[0], here[1]) == ("http", "https", there[1])
    if here != there and not is_upgrade:
        host = there[1][:100]
        raise ShopUnreachable(f"The shop redirects to {host}. If that is the shop, enter its address.")
    return to
