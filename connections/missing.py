"""Compare a shop's orders with ours, and send what is missing through the translator.

Some platforms repeat no lost post. Each hour, and by `manage.py connections check`, the orders that the shop
saved since the last comparison are read from its API. What the translator would make an event of is missing
here. The order's body is stored and waits for a person, who sends all of them on by one click. The worker
translates them again, under the lock of their orders, so that nothing comes twice.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
from collections.abc import Callable, Iterable, Set
from typing import Any, NamedTuple

import structlog
from django.conf import settings
from django.db import connection, transaction
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from connections.encryption import Unreadable, decrypt
from connections.models import ConnectionPost, ShopConnection
from connections.platforms import platform_of
from connections.posts import stored_of
from connections.woocommerce.client import ShopUnreachable
from events.consuming.envelope import Rejected
from events.consuming.inbox import explain
from events.models import ProcessedEvent
from orders.inbound.external import own_id
from orders.models import Order
from orders.subscriptions import NAME
from runtime.database.transactions import after_commit
from runtime.models import Heartbeat
from runtime.texts import make_storable

log = structlog.get_logger(__name__)

#: How far the first comparison looks back, and by how much a later one overlaps the one before.
FIRST, OVERLAP = dt.timedelta(days=2), dt.timedelta(hours=1)
#: How often all shops are compared, and the heartbeat of the last time.
EVERY, COMPARED = dt.timedelta(hours=1), "shops compared"
#: The posts of younger changes may still come.
YOUNGEST = dt.timedelta(minutes=10)
#: How many seconds a shop has to answer whether it takes a new key of its API.
KEY_SECONDS = 5.0
#: How many missing orders of a shop are stored. The next comparisons find the others.
MOST_MISSING = 1000


class Missing(NamedTuple):
    """An order that is otherwise in the shop than here. Without events it cannot be used, for the reason."""

    order_id: str
    reference: str
    body: str
    topics: tuple[str, ...]
    reason: str = ""


class Comparison(NamedTuple):
    read: int  # orders of the shop
    missing: list[Missing]


def compare(
    shop: ShopConnection, *, since: dt.datetime | None = None, sleep: Callable[[float], object] | None = None
) -> Comparison:
    """Read the shop's orders saved since a time, or since the last comparison, and store those missing here.

    Keep those that are still missing. Raise `ShopUnreachable`, which the page then shows.
    """
    now = timezone.now()
    # Changes from before the connection were not lost.
    due = max(shop.checked_at - OVERLAP if shop.checked_at else now - FIRST, shop.created_at)
    since = due if since is None else since
    earlier: dict[str, bytes] = {}
    bodies: dict[str, bytes] = {}
    read = 0
    try:
        for post in ConnectionPost.objects.filter(source=shop.source).missing():
            _keep(shop, post.body.encode(), earlier)
        for body in _read(shop, since, now - YOUNGEST, sleep):
            read += 1
            _keep(shop, body, bodies)
    except ShopUnreachable as problem:
        log.warning("shop not compared", source=shop.source, problem=_store_problem(shop, str(problem)))
        raise
    missing = [
        each
        for order_id, body in (earlier | bodies).items()
        if (each := _find_missing(shop, order_id, body, now))
    ]
    # The next comparison must not begin after orders that this one left out.
    is_whole = since <= due and len(missing) <= MOST_MISSING
    _store(shop, missing, earlier.keys() - bodies.keys(), now if is_whole else shop.checked_at)
    return Comparison(read, missing)


def try_key(shop: ShopConnection) -> str:
    """Ask the shop for the orders of this moment. Return why it does not tell them, or "".

    The page shows it, too, until the next comparison.
    """
    now = timezone.now()
    try:
        for _ in _read(shop, now, now, None, seconds=KEY_SECONDS):
            break
    except ShopUnreachable as problem:
        return _store_problem(shop, str(problem))
    return _store_problem(shop, "")


def _store_problem(shop: ShopConnection, problem: str) -> str:
    text = make_storable(problem)[:1000]
    ShopConnection.objects.filter(id=shop.id).update(check_problem=text)
    return text


def is_due() -> bool:
    """Return whether an hour has passed since the last comparison, and a shop can be compared."""
    recent = Heartbeat.objects.filter(name=COMPARED, beat_at__gt=Now() - EVERY)
    return _comparable().exists() and not recent.exists()


def compare_all() -> bool:
    """Compare the orders of each shop, if it is due. One that fails stops no other. Return False."""
    if is_due():
        Heartbeat.beat(name=COMPARED)
        for shop in _comparable():
            with contextlib.suppress(ShopUnreachable):  # its page says why
                compare(shop)
    return False


def _comparable() -> QuerySet[ShopConnection]:
    """Return the connections that have posted and have a key of the shop's API."""
    return ShopConnection.objects.active().exclude(api_key="").exclude(last_post_at=None)


def repair(*, source: str) -> int:
    """Have a worker process the missing orders of a shop. Return their number."""
    rows = ConnectionPost.objects.filter(source=source).missing()
    return rows.update(is_missing=False, reason="", received_at=Now())


def _read(
    shop: ShopConnection,
    since: dt.datetime,
    until: dt.datetime,
    sleep: Callable[[float], object] | None,
    seconds: float | None = None,
) -> Iterable[bytes]:
    if not shop.api_key:
        raise ShopUnreachable(
            "The connection has no key of the shop's API. Enter one on the connection's page in the admin."
        )
    try:
        key, secret = decrypt(shop.api_key), decrypt(shop.api_secret)
    except Unreadable as error:
        raise ShopUnreachable(str(error)) from error
    more: dict[str, Any] = {} if sleep is None else {"sleep": sleep}
    return platform_of(shop).read_orders(
        address=shop.address,
        key=key,
        secret=secret,
        since=since,
        until=until,
        is_private_allowed=settings.CONNECTIONS_PRIVATE,
        seconds=seconds,
        **more,
    )


def _keep(shop: ShopConnection, body: bytes, bodies: dict[str, bytes]) -> None:
    """Keep the newest body of each order."""
    try:
        order_id = platform_of(shop).read_order_id(body)
    except Rejected:
        return  # no order of the shop's API is like this
    if order_id is not None:
        bodies[order_id] = body


def _find_missing(shop: ShopConnection, order_id: str, body: bytes, now: dt.datetime) -> Missing | None:
    """Return what is missing of an order, or None. It is not locked: repairing it compares once more."""
    order = Order.objects.filter(id=own_id(source=shop.source, id=order_id), source=shop.source).first()
    text = make_storable(body.decode("utf-8", "replace"))
    try:
        translation = platform_of(shop).translate(
            body,
            stored=stored_of(order) if order is not None else None,
            source=shop.source,
            mapping=shop.statuses,
            received_at=now,
        )
    except Exception as error:  # an order that nobody foresaw must not hide the others
        if not isinstance(error, Rejected):
            log.exception("an order of a shop cannot be read", source=shop.source, order=order_id)
        reason = make_storable(explain(error))[:1000]
        return Missing(order_id, order.reference if order else "", text, (), reason)
    ids = [event["eventId"] for event in translation.events]
    done = ProcessedEvent.objects.filter(event_id__in=ids, consumer=NAME, source=shop.source)
    done_ids = {str(id) for id in done.values_list("event_id", flat=True)} if ids else set()
    topics = tuple(
        event["eventType"] for event in translation.events if str(event["eventId"]) not in done_ids
    )
    return Missing(order_id, translation.reference, text, topics) if topics else None


def _store(
    shop: ShopConnection,
    missing: list[Missing],
    unread: Set[str],
    checked_at: dt.datetime | None,
) -> None:
    """Store the missing orders. The orders `unread` were stored as missing before, and not read again."""
    ids = {own_id(source=shop.source, id=each.order_id): each for each in missing[:MOST_MISSING]}
    with transaction.atomic(), connection.cursor() as cursor:
        # Two comparisons at once: the later one replaces what the earlier one stored.
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext('missing'), hashtext(%s))", [shop.source])
        rows = ConnectionPost.objects.filter(source=shop.source).missing().select_for_update()
        # Meanwhile somebody may have sent some of them on, or erased their person.
        still = set(rows.values_list("order_id", flat=True))
        rows.delete()
        ConnectionPost.objects.bulk_create(
            ConnectionPost(
                source=shop.source,
                body=each.body,
                is_missing=True,
                reason=each.reason,
                order_id=id,
                reference=each.reference[:100],
            )
            for id, each in ids.items()
            if id in still or each.order_id not in unread
        )
        ShopConnection.objects.filter(id=shop.id).update(checked_at=checked_at, check_problem="")
        count = len(missing)
        after_commit(functools.partial(log.info, "shop compared", source=shop.source, missing=count))
