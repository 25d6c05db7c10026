"""Read the orders that changed in a shop from its orders API, with bounds on what the shop decides.

The host is looked up once for each request, and the connection goes to an address of that answer, after it
was checked: a name that means another address a moment later gains nothing. Proxies of the environment are
not used, because they would look up the host themselves.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import email.utils
import http.client
import ipaddress
import math
import queue
import re
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlencode, urljoin, urlsplit

from django.conf import settings

from events.consuming.envelope import DEEPEST
from notifications.providers.session import tls_context
from shop_connections.translation import OutOfTime, ReadOrder, ShopUnreachable
from web.api.bodies import NotStrict, parse_json
from web.proxies import inner_ipv4

_PATH = "/wp-json/wc/v3/orders"
PAGE_SIZE = 50
#: The fields that shop_connections.woocommerce.order reads. The shop sends nothing else about its customers.
_FIELDS = (
    "id,number,status,currency,total,total_tax,prices_include_tax,customer_id,customer_note,payment_method,"
    "payment_method_title,billing,shipping,line_items,shipping_lines,fee_lines,coupon_lines,tax_lines,refunds,"
    "meta_data,date_created_gmt,date_modified_gmt,date_paid_gmt,date_completed_gmt"
)
_MOST_PAGES = 2000
MOST_BYTES = 16_000_000  # of an answer, also of what gzip makes of it
_MOST_REDIRECTS = 3
_BLANKS = b" \t\r\n"
_MOST_PAUSES = 3
_LONGEST_PAUSE_SECONDS = 60.0
_CONNECT_SECONDS, _READ_SECONDS = 5.0, 30.0
ANSWER_SECONDS = 60.0
#: Of IPv6. Python calls some others global, such as those that only one site or a translator routes.
_OF_INTERNET = ipaddress.ip_network("2000::/3")


class _Page(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytearray


def read_orders(
    *,
    address: str,
    key: str,
    secret: str,
    since: dt.datetime,
    until: dt.datetime | None = None,
    is_private_allowed: bool,
    seconds: float,
    place: Any = None,
    sleep: Callable[[float], object] = time.sleep,
) -> Iterator[ReadOrder]:
    """Yield each order that was saved since then, as JSON for `translate`.

    Leave out those that were saved after `until`. An order may come twice if the shop changes others
    meanwhile. `is_private_allowed` also allows http. A reading that ended after its `seconds` goes on at the
    `place` of its last order, if the times are the same. Raise `ShopUnreachable`, or `OutOfTime` if at least
    a page was read.
    """
    query = {
        "modified_after": _written(since - dt.timedelta(seconds=1)),  # it leaves out the second itself
        "dates_are_gmt": "true",
        "status": "any",
        # An order that is saved meanwhile keeps its place, so no other moves to a page that was read. By its
        # time, or with modified_before, it would leave.
        "orderby": "id",
        "order": "asc",
        "per_page": str(PAGE_SIZE),
        "_fields": _FIELDS,
    }
    reader = _Reader(key, secret, is_private_allowed=is_private_allowed, sleep=sleep, seconds=seconds)
    number, total = place or (1, 0)
    for pages in range(_MOST_PAGES):
        try:
            page = reader.get(f"{address.rstrip('/')}{_PATH}?{urlencode({**query, 'page': str(number)})}")
        except OutOfTime as end:
            raise (
                OutOfTime(str(end), place=[number, total]) if pages else ShopUnreachable(str(end))
            ) from None
        before, total = total, _whole(page.headers.get("x-wp-total", ""))
        count = 0
        for body in _members(page.body):
            count += 1
            if not body or not _is_after(_read_member(body), until):
                yield ReadOrder(body, [number, total])
        is_last = count < PAGE_SIZE or page.headers.get("x-wp-totalpages") == str(number)
        del page  # before the next one comes
        if number > 1 and total < before:  # orders went to the trash, and the next ones moved up
            number = max(1, number - math.ceil((before - total) / PAGE_SIZE))
        elif is_last:
            return
        else:
            number += 1
    raise ShopUnreachable(f"The shop has more than {_MOST_PAGES} pages of orders. Ask for fewer days.")


def _is_after(order: Any, until: dt.datetime | None) -> bool:
    modified = order.get("date_modified_gmt") if isinstance(order, dict) else None
    return until is not None and isinstance(modified, str) and modified > _written(until)


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0


def _written(time: dt.datetime) -> str:
    return time.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")


_STRUCTURE, _AT_TOP = re.compile(rb'["\[\]{}]'), re.compile(rb'["\[\]{},]')
_IN_STRING = re.compile(rb'["\\]')


def _members(body: bytearray) -> Iterator[bytes]:
    """Yield the members of a JSON list, each to be parsed alone, or b"" for one that is too large.

    Objects of Python need many times the bytes of their JSON. So the page is never parsed as a whole.
    """
    opening = _AT_TOP.search(body)
    if opening is None or opening[0] != b"[" or body[: opening.start()].strip(_BLANKS):
        _parse(bytes(body[: settings.DATA_UPLOAD_MAX_MEMORY_SIZE]))
        raise ShopUnreachable("The answer of the shop is no list of orders.")
    depth, count, begin = 1, 0, opening.end()
    position = begin
    while depth:
        match = (_AT_TOP if depth == 1 else _STRUCTURE).search(body, position)
        if match is None:
            raise ShopUnreachable("The answer of the shop ends too early.")
        position = match.end()
        if match[0] == b'"':
            position = _end_of_string(body, position)
        elif match[0] in b"[{":
            depth += 1
        elif match[0] in b"]}":
            depth -= 1
        if (match[0] == b"," and depth == 1) or not depth:
            end = match.start()
            is_empty = end - begin < 100 and not body[begin:end].strip(_BLANKS)
            if is_empty and (depth or count):
                raise ShopUnreachable("The answer of the shop has nothing between two commas.")
            if not is_empty:
                count += 1
                if count > PAGE_SIZE:
                    raise ShopUnreachable(f"A page of the shop has more than {PAGE_SIZE} orders.")
                yield bytes(body[begin:end]) if end - begin <= settings.DATA_UPLOAD_MAX_MEMORY_SIZE else b""
            begin = position
    if body[position - 1 : position] != b"]" or body[position:].strip(_BLANKS):
        raise ShopUnreachable("The answer of the shop goes on after its list of orders.")


def _end_of_string(body: bytearray, position: int) -> int:
    while match := _IN_STRING.search(body, position):
        if match[0] == b'"':
            return match.end()
        position = match.end() + 1
    return len(body)


def _read_member(body: bytes) -> Any:
    order = _parse(body)
    if not isinstance(order, dict):
        raise ShopUnreachable("The answer of the shop is no list of orders.")
    return order


def _parse(body: bytes) -> Any:
    try:
        return parse_json(body, deepest=DEEPEST)
    except NotStrict as error:
        raise ShopUnreachable(f"The answer of the shop {error.reason}.") from None


class _Reader:
    """Sends requests with the key, until the time for all of them is over."""

    def __init__(
        self,
        key: str,
        secret: str,
        *,
        is_private_allowed: bool,
        sleep: Callable[[float], object],
        seconds: float,
    ) -> None:
        credentials = base64.b64encode(f"{key}:{secret}".encode()).decode()
        self._headers = {
            "Authorization": f"Basic {credentials}",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Connection": "close",
            "User-Agent": "orderpost",
        }
        self._is_private_allowed, self._sleep = is_private_allowed, sleep
        self._seconds, self._ends_at = seconds, time.monotonic() + seconds

    def get(self, url: str) -> _Page:
        """Return the answer 200. Follow redirects on the host, and wait if the shop asks for it."""
        redirects = pauses = 0
        while True:
            parts = self._check(url)
            page = self._request(parts)
            if page.status == 200:
                return page
            if page.status in (301, 302, 303, 307, 308) and redirects < _MOST_REDIRECTS:
                redirects += 1
                url = _follow(parts, page.headers.get("location", ""))
            elif page.status in (429, 503) and pauses < _MOST_PAUSES:
                pauses += 1
                self._pause(page.headers.get("retry-after", ""))
            else:
                raise ShopUnreachable(_explain(page.status))

    def _check(self, url: str) -> SplitResult:
        try:
            parts = urlsplit(url)
            is_complete = bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_complete = False
        if not is_complete or parts.username is not None:
            raise ShopUnreachable("The shop's address is not like https://shop.example.")
        if parts.scheme != "https" and not (parts.scheme == "http" and self._is_private_allowed):
            raise ShopUnreachable("The shop's address must begin with https://.")
        return parts

    def _pause(self, retry_after: str) -> None:
        seconds = _seconds_of(retry_after)
        if seconds > _LONGEST_PAUSE_SECONDS or time.monotonic() + seconds > self._ends_at:
            raise ShopUnreachable(f"The shop asks to wait {math.ceil(seconds)} s.")
        self._sleep(seconds)

    def _request(self, parts: SplitResult) -> _Page:
        seconds = min(ANSWER_SECONDS, self._ends_at - time.monotonic())
        if seconds <= 0:
            raise OutOfTime(f"The shop took longer than {self._seconds:.0f} s for all its orders.")
        assert parts.hostname is not None
        is_tls = parts.scheme == "https"
        port = parts.port or (443 if is_tls else 80)
        watch = None
        try:
            with contextlib.ExitStack() as stack:
                sock: socket.socket = stack.enter_context(self._connect(parts.hostname, port))
                # A shop that sends a byte now and then would never time out.
                watch = stack.enter_context(_Watch(sock, seconds))
                sock.settimeout(_READ_SECONDS)
                if is_tls:
                    tls = tls_context().wrap_socket(sock, server_hostname=parts.hostname)
                    sock = stack.enter_context(tls)
                page = self._exchange(sock, parts, port)
        except TimeoutError:
            raise ShopUnreachable("The shop does not answer in time.") from None
        except (OSError, ValueError, zlib.error, http.client.HTTPException) as error:
            if watch is not None and watch.has_ended:
                raise self._too_long(seconds) from None
            raise ShopUnreachable(f"The connection to the shop broke: {type(error).__name__}.") from None
        if watch is not None and watch.has_ended:
            raise self._too_long(seconds)
        return page

    def _too_long(self, seconds: float) -> ShopUnreachable:
        text = f"The shop took longer than {seconds:.0f} s for an answer."
        return ShopUnreachable(text) if seconds >= ANSWER_SECONDS else OutOfTime(text)

    def _exchange(self, sock: socket.socket, parts: SplitResult, port: int) -> _Page:
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", port)
        connection.auto_open = 0  # it would look up the host again
        connection.sock = sock
        connection.request("GET", f"{parts.path or '/'}?{parts.query}", headers=self._headers)
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        unzip = zlib.decompressobj(31) if headers.get("content-encoding") == "gzip" else None
        body = bytearray()
        while chunk := answer.read(2**16):
            # Of what gzip makes of a chunk, no more than tells that it is too much.
            body += chunk if unzip is None else unzip.decompress(chunk, MOST_BYTES + 1 - len(body))
            if len(body) > MOST_BYTES:
                raise ShopUnreachable(f"An answer of the shop has more than {MOST_BYTES:,} bytes.")
        if answer.length or (unzip is not None and not unzip.eof):
            raise http.client.IncompleteRead(b"", answer.length)
        return _Page(answer.status, headers, body)

    def _connect(self, host: str, port: int) -> socket.socket:
        """Connect to an address of the host. None may be private, unless that is allowed."""
        answers = self._look_up(host, port)
        if not self._is_private_allowed and not all(is_public(str(answer[4][0])) for answer in answers):
            raise ShopUnreachable(f"{host} is a private address, which CONNECTIONS_PRIVATE does not allow.")
        failure: OSError = OSError("no address")
        for family, kind, protocol, _, place in answers:
            sock = socket.socket(family, kind, protocol)
            sock.settimeout(self._connect_seconds())
            try:
                sock.connect(place)
            except OSError as error:
                sock.close()
                failure = error
            else:
                return sock
        raise failure

    def _look_up(self, host: str, port: int) -> list[Any]:
        """Look a host up. The C library takes as long as it likes, so a thread waits for it."""
        answers: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()

        def look_up() -> None:
            try:
                answers.put(list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))
            except (OSError, ValueError):
                answers.put([])

        threading.Thread(target=look_up, daemon=True).start()
        try:
            places = answers.get(timeout=self._connect_seconds())
        except queue.Empty:
            raise ShopUnreachable(f"The host {host} was not found in time.") from None
        if not places:
            raise ShopUnreachable(f"The host {host} was not found.")
        return places

    def _connect_seconds(self) -> float:
        return min(_CONNECT_SECONDS, max(0.01, self._ends_at - time.monotonic()))


class _Watch:
    """Shuts a socket down if a request takes longer than some seconds."""

    def __init__(self, sock: socket.socket, seconds: float) -> None:
        self.has_ended = False
        self._sock = sock.dup()  # the TLS socket takes over the other one
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> _Watch:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._sock.close()

    def _end(self) -> None:
        self.has_ended = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)


def is_public(address: str) -> bool:
    """Return whether an IP address is of the internet, also the IPv4 address inside one of IPv6.

    >>> is_public("8.8.8.8"), is_public("10.0.0.1"), is_public("::ffff:127.0.0.1")
    (True, False, False)
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if (inner := inner_ipv4(ip)) is not None:
            return is_public(str(inner))
        if ip not in _OF_INTERNET:
            return False
    return ip.is_global and not ip.is_multicast


def _follow(parts: SplitResult, location: str) -> str:
    """Return where a redirect leads. The key goes to no other host or port, except from http to https."""
    try:
        url = urljoin(parts.geturl(), location)
        to = urlsplit(url)
        place, now = (to.hostname, to.port), (parts.hostname, parts.port)
    except ValueError:
        raise ShopUnreachable("The shop redirects to an invalid address.") from None
    is_upgrade = (parts.scheme, to.scheme) == ("http", "https") and to.hostname == parts.hostname
    if not is_upgrade and (to.scheme != parts.scheme or place != now):
        host = to.hostname or ""
        raise ShopUnreachable(f"The shop redirects to {host[:100]}. If that is the shop, enter its address.")
    return url


def _seconds_of(retry_after: str) -> float:
    """Return the seconds that the header Retry-After asks for, or five if it is not readable."""
    if retry_after.isascii() and retry_after.isdecimal() and len(retry_after) < 10:
        return float(retry_after)
    try:
        at = email.utils.parsedate_to_datetime(retry_after).timestamp()
    except (ValueError, TypeError, OverflowError):
        return 5.0
    return max(1.0, at - time.time())


def _explain(status: int) -> str:
    if status in (401, 403):
        return "The shop refuses the API key. Make one with the permission Read, of a user who sees orders."
    if status == 404:
        return (
            "There is no orders API at the shop's address. In WordPress, choose permalinks other than Plain."
        )
    return f"The shop answered with status {status}."
