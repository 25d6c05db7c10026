"""Ask Saleor's API, in GraphQL, and for the keys of its signatures."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from django.conf import settings
from django.utils import timezone

from events.consuming.envelope import DEEPEST, Rejected
from runtime.bounded_http import HttpAnswer
from shop_connections.encryption import Unreadable, decrypt
from shop_connections.http import OutOfTime, ShopApi, ShopUnreachable
from shop_connections.models import ShopConnection
from shop_connections.saleor.query import ORDER, ORDERS
from shop_connections.saleor.read import EVENT, READ_AT, find_head, parse
from shop_connections.saleor.values import Json, member, members, text
from shop_connections.saleor.values import time as read_time
from shop_connections.shop_order import ReadOrder
from web.api.bodies import NotStrict, parse_json

PAGE_SIZE = 20
_MOST_PAGES = 5000
#: The bytes of an answer that are parsed as a whole.
MOST_PARSED = 8_000_000
#: So long after its creation an order's later events are looked for, which leave its `updatedAt` as it is.
OPEN_FOR = dt.timedelta(days=30)
_AGAIN = "Uninstall the app in Saleor's dashboard, and install it again with the page's address."


class SaleorApi:
    """Asks one Saleor, until the time for all questions is over."""

    def __init__(self, *, address: str, token: str = "", **options: Any) -> None:
        self._address = address.rstrip("/").removesuffix("/graphql")
        self._api = ShopApi(token=token, **options)

    def ask(self, query: str, **variables: Any) -> Json:
        """Return the data of an answer without errors. Raise `ShopUnreachable`."""
        answer = self._api.post(f"{self._address}/graphql/", {"query": query, "variables": variables})
        document = _parse(answer)
        errors = members(document, "errors")
        data = document.get("data")
        if errors or not isinstance(data, dict):
            raise ShopUnreachable(_explain(answer, errors))
        return data

    def keys(self) -> list[Json]:
        """Return the keys with which Saleor signs."""
        answer = self._api.get(f"{self._address}/.well-known/jwks.json")
        if answer.status != 200:
            raise ShopUnreachable(f"The shop answered with status {answer.status} when asked for its keys.")
        return [dict(key) for key in members(_parse(answer), "keys")]


def api_of(connection: ShopConnection, *, seconds: float) -> SaleorApi:
    """Return the API of a connection with its token. Raise `ShopUnreachable`."""
    try:
        token = decrypt(connection.api_secret) if connection.api_secret else ""
    except Unreadable as error:
        raise ShopUnreachable(str(error)) from error
    return make_api(connection, token=token, seconds=seconds)


def make_api(connection: ShopConnection, *, token: str, seconds: float) -> SaleorApi:
    return SaleorApi(
        address=connection.address,
        token=token,
        is_private_allowed=settings.CONNECTIONS_PRIVATE,
        seconds=seconds,
    )


def read_again(
    connection: ShopConnection, *, body: bytes, offset: dt.timedelta, seconds: float
) -> bytes | None:
    """Return the order of a body as it is now, with what the event says of its parcel. None if it is gone."""
    try:
        event = parse(body)
        head = find_head(event)
    except Rejected as error:
        raise ShopUnreachable(f"The post does not name its order: {error}.") from error
    if head is None:
        return None
    asked_at = timezone.now() - offset
    order = api_of(connection, seconds=seconds).ask(ORDER, id=head.id).get("order")
    if not isinstance(order, dict):
        return None
    kept = {name: event[name] for name in EVENT if name in event}
    return json.dumps({**kept, READ_AT: asked_at.isoformat(), "order": order}).encode()


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
    offset: dt.timedelta = dt.timedelta(),
    sleep: Callable[[float], object] = time.sleep,
) -> Iterator[ReadOrder]:
    """Yield each order that changed since then, as JSON for `read`.

    Leave out those that were saved after `until`. First come those with a later `updatedAt`, and then those
    of the last `OPEN_FOR` with a later event, such as a second parcel or a corrected number. A reading that
    ended after its `seconds` goes on at the `place` of its last order. Raise `ShopUnreachable`, or
    `OutOfTime` if at least a page was read.
    """
    api = SaleorApi(
        address=address, token=secret, is_private_allowed=is_private_allowed, seconds=seconds, sleep=sleep
    )
    questions = _questions(since)
    number, after = place or (0, None)
    for asked in range(_MOST_PAGES):
        asked_at = timezone.now() - offset
        try:
            data = api.ask(ORDERS, first=PAGE_SIZE, after=after, where=questions[number])
        except OutOfTime as end:
            error = OutOfTime(str(end), place=[number, after]) if asked else ShopUnreachable(str(end))
            raise error from None
        page = member(data, "orders")
        for edge in members(page, "edges"):
            order = member(edge, "node")
            if _is_young(order, until):
                continue
            body = json.dumps({READ_AT: asked_at.isoformat(), "order": order}).encode()
            is_small = len(body) <= settings.DATA_UPLOAD_MAX_MEMORY_SIZE
            yield ReadOrder(body if is_small else b"", [number, after])
        info = member(page, "pageInfo")
        before, after = after, info.get("endCursor")
        if info.get("hasNextPage") is not True:
            number, after = number + 1, None
            if number == len(questions):
                return
        elif not isinstance(after, str) or after == before:
            raise ShopUnreachable("The shop's pages of orders do not go on.")
    raise ShopUnreachable(f"The shop has more than {_MOST_PAGES} pages of orders. Ask for fewer days.")


def _questions(since: dt.datetime) -> Sequence[Mapping[str, Any]]:
    at, opened_at = since.isoformat(), (since - OPEN_FOR).isoformat()
    before = (since - dt.timedelta.resolution).isoformat()
    return (
        {"updatedAt": {"gte": at}},
        {
            "updatedAt": {"lte": before},
            "createdAt": {"gte": opened_at},
            "events": [{"date": {"gte": at}}],
        },
    )


def _is_young(order: Json, until: dt.datetime | None) -> bool:
    """Return whether an order was saved after a time. A date far ahead of it is a fault of the shop."""
    at = read_time(order.get("updatedAt"))
    return until is not None and at is not None and until < at < until + dt.timedelta(days=2)


def _parse(answer: HttpAnswer) -> Json:
    if len(answer.body) > MOST_PARSED:
        raise ShopUnreachable(f"An answer of the shop has more than {MOST_PARSED:,} bytes.")
    try:
        document = parse_json(bytes(answer.body), deepest=DEEPEST)
    except NotStrict:
        document = None
    if not isinstance(document, dict):
        raise ShopUnreachable(
            f"The shop answered with status {answer.status}, and not in JSON. Is this Saleor?"
        )
    return document


def _explain(answer: HttpAnswer, errors: Sequence[Json]) -> str:
    """Return why an answer has no data, and what to do."""
    codes = {text(member(member(error, "extensions"), "exception").get("code")) for error in errors}
    said = text(errors[0].get("message"))[:200] if errors else f"status {answer.status}"
    if codes & {"PermissionDenied", "InvalidTokenError", "JSONWebTokenError", "ExpiredSignatureError"}:
        return f"The shop refuses the app's token: {said}. {_AGAIN}"
    return f"The shop answered with an error: {said}."
