"""Read the orders that changed in a shop from its orders API."""

from __future__ import annotations

import codecs
import datetime as dt
import math
import re
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.utils.html import strip_tags

from events.consuming.envelope import DEEPEST
from runtime.bounded_http import HttpAnswer
from shop_connections.http import OutOfTime, ShopApi, ShopUnreachable
from shop_connections.shop_order import ReadOrder
from web.api.bodies import NotStrict, parse_json

_PATH = "/wp-json/wc/v3/orders"
PAGE_SIZE = 50
#: The members that this package reads. The shop sends nothing else about its customers.
FIELDS = (
    *("id", "number", "order_key", "_links", "parent_id", "status", "created_via", "currency", "total"),
    *("total_tax", "prices_include_tax", "customer_id", "customer_note", "payment_method"),
    *("payment_method_title", "billing", "shipping", "line_items", "shipping_lines", "fee_lines"),
    *("coupon_lines", "tax_lines", "refunds", "meta_data", "date_created", "date_created_gmt"),
    *("date_modified_gmt", "date_paid_gmt", "date_completed_gmt", "needs_processing"),
)
_MOST_PAGES = 2000
#: How often orders may leave the list while it is read.
_MOST_RETURNS = 20
_BLANKS = b" \t\r\n"
_LEADING = _BLANKS + codecs.BOM_UTF8  # of an answer, and nothing else
#: A header of a firewall's answer, a word of its page, and its name.
_FIREWALLS = (("cf-mitigated", "cloudflare", "Cloudflare"), ("sg-captcha", "sgcaptcha", "SiteGround"))
#: How PHP and WordPress begin what they print in front of an answer, or behind it.
_MESSAGE = re.compile(
    r"(?:(?:Notice|Warning|Deprecated|Strict Standards|(?:Fatal|Parse) error)|WordPress database error):"
)


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
    """Yield each order that was saved since then, as JSON for `read`.

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
        "_fields": ",".join(FIELDS),
    }
    api = ShopApi(key=key, secret=secret, is_private_allowed=is_private_allowed, seconds=seconds, sleep=sleep)
    number, total = place or (1, 0)
    pages, furthest, size, returns = 0, number - 1, 1, 0
    seen: set[int] = set()
    for asked in range(_MOST_PAGES):
        try:
            page = api.get(f"{address.rstrip('/')}{_PATH}?{urlencode({**query, 'page': str(number)})}")
        except OutOfTime as end:
            raise (
                OutOfTime(str(end), place=[number, total]) if asked else ShopUnreachable(str(end))
            ) from None
        if refusal := _explain(page):
            raise ShopUnreachable(refusal)
        # A plug-in or a proxy may take these headers away, or write 0.
        before, total = total, _whole(page.headers.get("X-WP-Total", "")) or total
        pages = _whole(page.headers.get("X-WP-TotalPages", "")) or pages
        count, ids = 0, set[int]()
        for body in _members(page.body):
            count += 1
            id, modified = _read_head(body) if body else (None, None)
            if isinstance(id, int):
                ids.add(id)
            if until is None or not _is_young(modified, until):
                yield ReadOrder(body, [number, total])
        del page  # before the next one comes
        size = max(size, count)  # a shop may allow fewer than were asked for
        if number > 1 and total < before:  # orders went to the trash, and the next ones moved up
            returns += 1
            if returns > _MOST_RETURNS:
                raise ShopUnreachable("The number of the shop's orders changes with each of their pages.")
            number = max(1, number - math.ceil((before - total) / size))
            continue
        if number > furthest and ids and ids <= seen and total <= before:
            raise ShopUnreachable(
                f"Page {number} of the shop's orders repeats those before. A cache or the web server drops"
                " what stands behind the question mark of an address."
            )
        if total and not count and number <= pages:
            raise ShopUnreachable(f"Page {number} of the {pages} pages of the shop's orders is empty.")
        if number >= pages and (pages or not count):
            return
        seen |= ids
        furthest = max(furthest, number)
        number += 1
    raise ShopUnreachable(f"The shop has more than {_MOST_PAGES} pages of orders. Ask for fewer days.")


def _is_young(modified: Any, until: dt.datetime) -> bool:
    """Return whether an order was saved after a time. A date far ahead of it is a fault of the shop."""
    return isinstance(modified, str) and _written(until) < modified < _written(until + dt.timedelta(days=2))


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
    if opening is None or opening[0] != b"[" or body[: opening.start()][:1000].strip(_LEADING):
        raise _no_list(body)
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
        raise _no_list(body[position:])


def _end_of_string(body: bytearray, position: int) -> int:
    while match := _IN_STRING.search(body, position):
        if match[0] == b'"':
            return match.end()
        position = match.end() + 1
    return len(body)


def _read_head(body: bytes) -> tuple[Any, Any]:
    """Return the id of an order and when it was saved. Its many objects are gone before it is used."""
    try:
        order = parse_json(body, deepest=DEEPEST)
    except NotStrict as error:
        raise ShopUnreachable(f"The answer of the shop {error.reason}.") from None
    if not isinstance(order, dict):
        raise ShopUnreachable("The answer of the shop has no list of orders.")
    return order.get("id"), order.get("date_modified_gmt")


def _no_list(text: bytes | bytearray) -> ShopUnreachable:
    """Say what an answer has in place of a list of orders, or behind it."""
    words = " ".join(strip_tags(text[:2000].decode("utf-8", "replace")).split())
    if message := _MESSAGE.search(words):
        said = words[message.start() :][:150]
        why = f"has a message of PHP in it, so turn display_errors off in the shop: {said}"
    elif text.lstrip(_BLANKS).startswith(b"<"):
        why = f"is a page for people, such as of a maintenance or a firewall: {words[:100]}"
    else:
        why = "has no list of orders"
    return ShopUnreachable(f"The answer of the shop {why}.")


def _explain(answer: HttpAnswer) -> str:
    """Return why an answer has no orders, and what to do, or ""."""
    status, headers = answer.status, answer.headers
    page = "" if status == 200 else answer.body[:65536].decode("utf-8", "replace").lower()
    stopped = f"stopped the request with status {status}. Let requests of this server to /wp-json/wc/ pass."
    for header, word, name in _FIREWALLS:
        if header in headers or word in page:
            return f"The shop's firewall, {name}, {stopped}"
    if status == 200:
        return ""
    is_of_wordpress = page.lstrip("\ufeff \t\r\n").startswith("{")
    if status == 401 and not is_of_wordpress and "basic" in headers.get("WWW-Authenticate", "").lower():
        return (
            "The shop's web server asks for a password of its own, as for a staging site. Turn it off for"
            " /wp-json/wc/, because a request has either this password or the API key."
        )
    if status == 401 and "woocommerce_rest_cannot_view" in page:
        return (
            "The shop does not know the API key, or its web server drops the header Authorization. If another"
            ' key is refused, too, write SetEnvIf Authorization "(.*)" HTTP_AUTHORIZATION=$1 at the top of'
            " the shop's .htaccess, and let a proxy in front of it send X-Forwarded-Proto."
        )
    if status in (401, 403) and is_of_wordpress:
        return "The shop refuses the API key. Make one with the permission Read, of a user who sees orders."
    if status in (401, 403, 406):
        return f"A firewall or a plug-in of the shop {stopped}"
    if status == 404:
        return (
            "There is no orders API at the shop's address. In WordPress, choose permalinks other than Plain."
        )
    return f"The shop answered with status {status}."
