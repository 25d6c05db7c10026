"""Compare a shop's orders with ours, and send on what is missing.

Some platforms repeat no lost post. Each hour, and by `manage.py connections check`, the orders that the shop
saved since the last comparison are read from its API. An order is missing here if a post of it would change
something. Its body is stored and waits for a person, who sends all of them on by one click. The worker
compares them again, under the lock of their orders, so that nothing comes twice.

A shop decides how much it answers. So its orders are judged one at a time as they come, what is missing is
stored at once, and a comparison whose time is over goes on at its place the next time.
"""

from __future__ import annotations

import datetime as dt
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import structlog
from django.conf import settings
from django.db import InterfaceError, OperationalError, connection, transaction
from django.db.models import Exists, F, Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from events.consuming.envelope import Rejected
from events.consuming.inbox import explain
from orders.emails import default_locale
from orders.models import Order
from runtime.models import Heartbeat
from runtime.personal_data import hashes_in
from runtime.texts import make_storable
from shop_connections.apply import read_here
from shop_connections.changes import due_at, find_changes
from shop_connections.clocks import clock_offset
from shop_connections.encryption import Unreadable, decrypt
from shop_connections.http import OutOfTime, ShopUnreachable
from shop_connections.models import ConnectionPost, PostState, ShopConnection
from shop_connections.platforms import PLATFORMS, platform_of
from shop_connections.process import find_order_id, is_of_erased
from shop_connections.shop_order import ReadOrder, ShopHead

log = structlog.get_logger(__name__)

#: By how much a comparison overlaps the one before.
OVERLAP = dt.timedelta(hours=1)
#: How far before the connection the first comparison also looks.
BEFORE = dt.timedelta(days=30)
#: How many orders of a shop wait as history. The next comparison goes on there.
MOST_HISTORY = 5000
#: How often all shops are compared, and the heartbeat of the last time.
EVERY, COMPARED = dt.timedelta(hours=1), "shops compared"
#: The posts of younger changes may still come.
YOUNGEST = dt.timedelta(minutes=10)
#: How many seconds a shop has to answer whether it takes a new key of its API.
KEY_SECONDS = 5.0
#: How many missing orders of a shop are stored. The next comparisons find the others.
MOST_MISSING = 1000
#: How long a comparison of all shops lasts, and how long it reads one shop while others wait.
MOST_SECONDS, MOST_SHOP_SECONDS = 300.0, 60.0
#: The bytes that it holds at a time: a page, and the objects of one order. It reads one shop after the other.
MOST_HELD_BYTES = 64_000_000
#: After how many orders a page learns how far a comparison is.
TELL_EVERY = 25
#: A comparison with less time left begins with no other shop.
LEAST_SECONDS = 5.0
#: After this time, a comparison that a person asked for counts as dead. Its last answer may come late.
MOST_ASKED = dt.timedelta(seconds=MOST_SHOP_SECONDS + 60)


class Missing(NamedTuple):
    """An order that is otherwise in the shop than here. Without changes it cannot be used, for the reason."""

    order_id: str
    reference: str
    events: tuple[str, ...]
    reason: str = ""


class Comparison(NamedTuple):
    read: int  # orders of the shop
    missing: list[Missing]
    is_whole: bool  # or else the time was over, or no more can be stored


def compare_shop(
    shop: ShopConnection,
    *,
    since: dt.datetime | None = None,
    seconds: float = MOST_SECONDS,
    sleep: Callable[[float], object] | None = None,
    tell: Callable[[int], object] = lambda read: None,
) -> Comparison:
    """Read the shop's orders saved since a time, or since the last comparison, and store those missing here.

    Keep those that are still missing. `tell` is called with the number of orders that were read, now and
    then. Raise `ShopUnreachable`, which the page then shows.
    """
    now, ends_at = timezone.now(), time.monotonic() + seconds
    began_at, place = now, None
    # Changes from before the connection were not lost.
    due = max(shop.checked_at - OVERLAP if shop.checked_at else shop.created_at, shop.created_at)
    is_asked = since is not None and since > due
    if since is None:
        # Older orders are stored as history, so that the next change of one comes in no first post.
        since = due if shop.checked_at else now - BEFORE
        if shop.unfinished:
            since, began_at = (
                dt.datetime.fromisoformat(shop.unfinished[name]) for name in ("since", "began_at")
            )
            place = shop.unfinished["place"]
    offset = clock_offset(shop)
    missing = {each.order_id: each for each in _judge_stored(shop, now, offset)}
    read = too_large = 0
    unfinished_at = None
    try:
        seconds = ends_at - time.monotonic()
        orders = _read(
            shop, since - offset, began_at - YOUNGEST - offset, sleep, seconds, place, offset=offset
        )
        for body, at in orders:
            read += 1
            if read % TELL_EVERY == 0:
                tell(read)
            if not body:
                too_large += 1
            elif time.monotonic() > ends_at or not _judge(
                shop, body, now, missing, offset, history_before=shop.created_at
            ):
                unfinished_at = at
                break
    except OutOfTime as end:
        unfinished_at = end.place
    except ShopUnreachable as problem:
        log.warning("shop not compared", source=shop.source, problem=_store_problem(shop, str(problem)))
        raise
    values: dict[str, Any] = {"check_problem": "", "left_out": too_large}
    if unfinished_at is None and not is_asked:
        values |= {"checked_at": began_at, "unfinished": None}
    elif not is_asked:
        times = {"since": since.isoformat(), "began_at": began_at.isoformat()}
        values["unfinished"] = {**times, "place": unfinished_at}
    ShopConnection.objects.filter(id=shop.id).update(**values)
    log.info("shop compared", source=shop.source, missing=len(missing))
    return Comparison(read, list(missing.values()), unfinished_at is None)


def try_key(shop: ShopConnection) -> str:
    """Ask the shop for an order of the last days. Return why it does not tell them, or "".

    The page shows it, too, until the next comparison.
    """
    now = timezone.now()
    problem = ""
    try:
        for order in _read(shop, now - BEFORE, now, None, KEY_SECONDS):
            head = _read_head(shop, order.body) if order.body else None
            if head is not None and not shop.has_address(head.address):
                problem = f"Its orders say that they are of {head.address}. Is {shop.address} the right one?"
            break
    except ShopUnreachable as unreachable:
        problem = str(unreachable)
    return _store_problem(shop, problem)


def _store_problem(shop: ShopConnection, problem: str) -> str:
    text = make_storable(problem)[:1000]
    ShopConnection.objects.filter(id=shop.id).update(check_problem=text)
    return text


def is_due() -> bool:
    """Return whether a person asked for a comparison, or an hour has passed since the last one."""
    recent = Heartbeat.objects.filter(name=COMPARED, beat_at__gt=Now() - EVERY)
    return _comparable().filter(_IS_ASKED | ~Exists(recent)).exists()


#: A person asked for a comparison, and none has begun.
_IS_ASKED = Q(comparison__has_key="asked_at") & ~Q(comparison__has_key="began_at")


def compare_all() -> bool:
    """Compare the shops for which a person asked, and if it is due, all, in one process. Return False.

    One that fails stops no other. The comparison begins with the shop whose last try was longest ago.
    """
    for asked in _comparable().filter(_IS_ASKED):
        _compare_asked(asked)
    recent = Heartbeat.objects.filter(name=COMPARED, beat_at__gt=Now() - EVERY)
    if not _comparable().exists() or recent.exists() or not Heartbeat.begin(name=COMPARED, every=EVERY):
        return False
    ends_at = time.monotonic() + MOST_SECONDS
    ids = list(
        _comparable().order_by(F("tried_at").asc(nulls_first=True), "source").values_list("id", flat=True)
    )
    for others, id in zip(range(len(ids) - 1, -1, -1), ids, strict=True):
        left = ends_at - time.monotonic()
        if left < LEAST_SECONDS:
            log.info("shops wait for the next comparison", shops=others + 1)
            break
        _compare_alone(id, seconds=min(left, MOST_SHOP_SECONDS) if others else left)
    return False


def _compare_asked(shop: ShopConnection) -> None:
    """Compare a shop for a person, whose page shows how far it is and what was different."""
    now = timezone.now().isoformat()
    progress: dict[str, Any] = {**(shop.comparison or {}), "began_at": now, "read": 0}
    asked = ShopConnection.objects.filter(id=shop.id)
    if not asked.filter(_IS_ASKED).update(comparison=progress):
        return  # another worker has begun
    asked = asked.filter(comparison__began_at=now)  # meanwhile somebody may ask for another one

    def tell(read: int) -> None:
        asked.update(comparison={**progress, "read": read})

    done: dict[str, Any]
    try:
        comparison = compare_shop(shop, seconds=MOST_SHOP_SECONDS, tell=tell)
    except ShopUnreachable as unreachable:
        done = {"problem": make_storable(str(unreachable))[:1000]}
    except (OperationalError, InterfaceError):
        raise  # the database's own state
    except Exception:
        log.exception("shop not compared", source=shop.source)
        done = {"problem": "The comparison failed here, and the log says why."}
    else:
        done = {"read": comparison.read, "missing": len(comparison.missing), "is_whole": comparison.is_whole}
    asked.update(comparison={**progress, **done, "done_at": timezone.now().isoformat()})


def _compare_alone(id: uuid.UUID, *, seconds: float) -> None:
    """Compare a shop, whose failure is its own. First note the try, which may end the process."""
    if not _comparable().filter(id=id).update(tried_at=Now()):
        return
    shop = ShopConnection.objects.get(id=id)
    try:
        compare_shop(shop, seconds=seconds)
    except ShopUnreachable:
        pass  # its page says why
    except (OperationalError, InterfaceError):
        raise  # the database's own state
    except Exception:
        log.exception("shop not compared", source=shop.source)
        _store_problem(shop, "The comparison failed here, and the log says why.")


def _comparable() -> QuerySet[ShopConnection]:
    """Return the connections that have posted and have a key of the shop's API."""
    shops = ShopConnection.objects.active().filter(platform__in=PLATFORMS)
    return shops.exclude(api_key="").exclude(last_post_at=None)


def repair(*, source: str) -> int:
    """Have a worker process the missing orders of a shop. Return their number."""
    rows = ConnectionPost.objects.filter(source=source).missing()
    return rows.update(state=PostState.WAITING, reason="", received_at=Now())


def _read(
    shop: ShopConnection,
    since: dt.datetime,
    until: dt.datetime,
    sleep: Callable[[float], object] | None,
    seconds: float,
    place: Any = None,
    *,
    offset: dt.timedelta = dt.timedelta(),
) -> Iterable[ReadOrder]:
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
        place=place,
        offset=offset,
        **more,
    )


def _judge_stored(shop: ShopConnection, now: dt.datetime, offset: dt.timedelta) -> Iterator[Missing]:
    """Yield the orders that were stored as missing and still are, and delete the others."""
    rows = ConnectionPost.objects.filter(source=shop.source).missing()
    for id in list(rows.order_by("id").values_list("id", flat=True)):
        row = rows.filter(id=id)
        body = row.values_list("body", flat=True).first()
        if body is None:  # meanwhile somebody has sent it on, or erased its person
            continue
        head = _read_head(shop, body.encode())
        each = _find_missing(shop, head, body.encode(), now, offset) if head is not None else None
        if each is None:
            row.delete()
        elif row.update(reason=each.reason, received_at=Now()):
            yield each


def catch_up(shop: ShopConnection, *, seconds: float) -> None:
    """Store as history what the shop changed before it went live, and whose posts were lost.

    An order that was saved since is left to its posts. Raise `ShopUnreachable`.
    """
    assert shop.live_at is not None
    now, live_at, ends_at = timezone.now(), shop.live_at, time.monotonic() + seconds
    offset = clock_offset(shop)
    rows = ConnectionPost.objects.filter(source=shop.source).missing()
    for id in list(rows.order_by("id").values_list("id", flat=True)):
        row = rows.filter(id=id)
        text = row.values_list("body", flat=True).first()  # one at a time, because they may be large
        head = _read_head(shop, text.encode()) if text is not None else None
        if head is not None and _is_before(head, live_at, offset):
            row.update(state=PostState.WAITING, is_history=True)
    since = shop.checked_at - OVERLAP if shop.checked_at else shop.created_at
    left = ends_at - time.monotonic()
    for body, _ in _read(shop, since - offset, live_at - offset, None, left, offset=offset):
        if time.monotonic() > ends_at:
            raise OutOfTime("The time is over.")
        if body and not _judge(shop, body, now, {}, offset, history_before=live_at):
            raise ShopUnreachable(f"More than {MOST_HISTORY:,} of its orders wait as history.")


def _is_before(head: ShopHead, moment: dt.datetime, offset: dt.timedelta) -> bool:
    return head.modified_at is not None and head.modified_at + offset < moment


def _judge(
    shop: ShopConnection,
    body: bytes,
    now: dt.datetime,
    missing: dict[str, Missing],
    offset: dt.timedelta,
    *,
    history_before: dt.datetime,
) -> bool:
    """Store an order of the shop if it is missing here. Return False if no more can be stored.

    Store an order that was saved before `history_before` as history, without waiting for a person.
    """
    head = _read_head(shop, body)
    if head is None:
        return True
    order_id, each = head.id, _find_missing(shop, head, body, now, offset)
    if each is not None and not each.reason and _is_before(head, history_before, offset):
        return _store_history(shop, head, body)
    if each is not None and order_id not in missing and len(missing) >= MOST_MISSING:
        return False
    if each is not None or order_id in missing:
        _store(shop, find_order_id(shop, head), body, each)
    if each is None:
        missing.pop(order_id, None)
    else:
        missing[order_id] = each
    return True


def _read_head(shop: ShopConnection, body: bytes) -> ShopHead | None:
    """Return which order a body is about, or None if it is about none of the shop's."""
    try:
        head = platform_of(shop).read_head(body)
    except Rejected:
        return None  # no order of the shop's API is like this
    is_of_shop = head and not shop.is_copy(head.address) and shop.has_channel(head.channel)
    return head if is_of_shop else None


def _find_missing(
    shop: ShopConnection, head: ShopHead, body: bytes, now: dt.datetime, offset: dt.timedelta
) -> Missing | None:
    """Return what is missing of an order, or None, also for that of an erased person.

    It is not locked: repairing it compares once more.
    """
    id, order_id = find_order_id(shop, head), head.id
    order = Order.objects.filter(id=id, source=shop.source).first()
    placed_at = None
    try:
        there = platform_of(shop).read(body, locale=default_locale(source=shop.source))
        if there is None:
            return None
        here = read_here(order) if order is not None else None
        there = there.on_our_clock(offset, received_at=now)
        later = due_at(here, there, source=shop.source, received_at=now)
        if later is not None and later > now:
            return None  # a post may still say more of it
        differences = find_changes(here, there, shop=shop, received_at=now)
    except Exception as error:  # an order that nobody foresaw must not hide the others
        if not isinstance(error, Rejected):
            log.exception("an order of a shop cannot be read", source=shop.source, order=order_id)
        reason = make_storable(explain(error))[:1000]
        missing = Missing(order_id, order.reference if order else "", (), reason)
    else:
        if not differences.changes:
            return None
        placed_at = differences.order.created_at
        events = tuple(change.event for change in differences.changes)
        missing = Missing(order_id, differences.order.number, events)
    hashes = hashes_in(body.decode("utf-8", "replace"))
    return None if is_of_erased(id, hashes, placed_at=placed_at) else missing


def _store_history(shop: ShopConnection, head: ShopHead, body: bytes) -> bool:
    """Have a worker store an order as it is, without e-mails. Return False if too many wait for that."""
    id, text = find_order_id(shop, head), make_storable(body.decode("utf-8", "replace"))
    waiting = ConnectionPost.objects.waiting().filter(source=shop.source, is_history=True)
    if waiting[:MOST_HISTORY].count() >= MOST_HISTORY:
        return False
    if not waiting.filter(order_id=id).exists():
        ConnectionPost.objects.create(
            source=shop.source, body=text, address_hashes=hashes_in(text), order_id=id, is_history=True
        )
    return True


def _store(shop: ShopConnection, id: uuid.UUID, body: bytes, missing: Missing | None) -> None:
    """Replace what was stored of an order before, or only delete it if nothing is missing."""
    text = make_storable(body.decode("utf-8", "replace"))
    with transaction.atomic(), connection.cursor() as cursor:
        # Two comparisons at once: the later one replaces what the earlier one stored.
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext('missing'), hashtext(%s))", [shop.source])
        ConnectionPost.objects.filter(source=shop.source, order_id=id).missing().delete()
        if missing is not None:
            ConnectionPost.objects.create(
                source=shop.source,
                body=text,
                address_hashes=hashes_in(text),
                state=PostState.MISSING,
                reason=missing.reason,
                order_id=id,
                reference=missing.reference[:100],
            )
