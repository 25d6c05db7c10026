"""Process stored posts: compare each with the order here, and save its changes, in one transaction.

The posts of a connection are processed one after the other, in the order of their arrival. The lock of the
connection ends with the transaction, so another worker may take the next post. A crash undoes the post's
effects together with its `done_at`.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, cast

import structlog
from django.conf import settings
from django.db import IntegrityError, InterfaceError, OperationalError, connection, transaction
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone

from events.consuming.envelope import Rejected
from events.consuming.inbox import explain
from orders.emails import default_locale
from orders.inbound.external import our_id
from orders.models import Order
from runtime.database.away import is_refusing
from runtime.database.save import lock_row, write_once
from runtime.database.transactions import after_commit
from runtime.jobs.work import waker
from runtime.models import Pause
from runtime.personal_data import ERASED_ADDRESS
from runtime.process import cached_rows
from runtime.telemetry import context
from runtime.texts import make_storable
from shop_connections import metrics
from shop_connections.apply import TooSlow, read_here, save_changes
from shop_connections.changes import (
    LATE,
    MOST_CHANGES,
    Differences,
    Here,
    UnknownStatus,
    due_at,
    find_changes,
    is_late,
)
from shop_connections.clocks import clock_offset
from shop_connections.models import ConnectionPost, PostState, ShopConnection
from shop_connections.platforms import PLATFORMS, platform_of
from shop_connections.shop_emails import find_unmailed
from shop_connections.shop_order import CLOCKS_APART, ShopHead, ShopOrder, is_before

log = structlog.get_logger(__name__)

#: How long one task works. Then it makes way for drains and jobs, and queues the next.
LONGEST_SECONDS = 5.0
#: How long the transaction of a post lasts. Changes that take longer are stored as one change.
MOST_SECONDS = 10.0
#: How much of that is for the changes, before they are undone and stored as one.
_CHANGES_SECONDS = 8.0
#: How many orders below another one a page names.
MOST_SEEN = 10
#: How many addresses of other shops a page asks about.
MOST_FOREIGN = 10
#: When a worker looks again that met another one at work.
AGAIN_SECONDS = 1.0
_WRITTEN = (
    *("state", "done_at", "due_at", "failed_readings", "reason", "unknown_status"),
    *("order_id", "reference", "address"),
)
#: What became of a post, or why there was none.
Step = Literal["done", "later", "unusable", "none", "busy"]


_RESULTS: dict[PostState, Step] = {
    PostState.DONE: "done",
    PostState.WAITING: "later",
    PostState.UNUSABLE: "unusable",
}


class MustBeRead(Exception):
    """A post does not tell its order as it is, which a worker must read from the shop's API.

    `at` is when, if what is stored has a time that is still to come here. Read before, it would be late, too.
    """

    def __init__(self, at: dt.datetime | None = None) -> None:
        super().__init__()
        self.at = at


def process_waiting(*, seconds: float) -> Literal["none", "busy", "more"]:
    """Process the waiting posts of all connections for about so long. Return what is left.

    It is "busy" if other workers process the rest. An error of the database leaves a post for the next time.
    """
    if Pause.objects.filter(part=Pause.Part.CONSUMERS).exists():
        return "none"  # the poll looks again
    until = time.monotonic() + seconds
    cached_rows.load()  # a handler must not wait for other reads while it holds a lock
    due = ConnectionPost.objects.due().order_by("source")
    sources = list(due.values_list("source", flat=True).distinct())
    is_busy = False
    while sources and time.monotonic() < until:
        for source in list(sources):  # one of each: a shop with many posts must not stop the others
            step = process_next(source)
            is_busy |= step == "busy"
            if step in ("busy", "none"):
                sources.remove(source)
    if sources:
        return "more"
    return "busy" if is_busy else "none"


def is_waiting() -> bool:
    """Return whether a post of an active connection waits."""
    active = ShopConnection.objects.active().values("source")
    return ConnectionPost.objects.due().filter(source__in=active).exists()


def process_some() -> bool:
    """Process waiting posts for some seconds. Return whether more are left to process at once."""
    left = process_waiting(seconds=LONGEST_SECONDS)
    if left == "busy":
        # The other worker may have looked for posts before the last one came.
        waker.wake(in_seconds=AGAIN_SECONDS)
    return left == "more"


def wake() -> None:
    """Have a worker process stored posts. Call this after the commit that stores one."""
    if settings.FAST_PATH:
        waker.wake()


def process_next(source: str) -> Step:
    """Process the next post of a connection, unless another worker processes one now.

    Raise the database's errors after which the post must be tried again.
    """
    with transaction.atomic(durable=True):
        if not _lock(source):
            return "busy"
        shop = ShopConnection.objects.active().filter(source=source, platform__in=PLATFORMS).first()
        posts = ConnectionPost.objects.due().filter(source=source).order_by("-is_history", "id")
        if shop is not None and shop.is_catching_up(timezone.now()):
            posts = posts.filter(Q(is_history=True) | Q(received_at__lt=shop.live_at))
        post = posts.select_for_update().first() if shop is not None else None
        if shop is None or post is None:
            return "none"
        turn = _find_turn(post, shop)
        if turn.newest != post.id:
            post = ConnectionPost.objects.waiting().select_for_update().get(id=turn.newest)
        post.unknown_status = ""
        try:
            _process_or_repeat(post, shop)
            if post.due_at is None or post.due_at <= timezone.now():
                post.state, post.done_at = PostState.DONE, Now()
            _end_older(turn.older)
        except MustBeRead as order:
            post.failed_readings, post.due_at = 0, order.at
            after_commit(wake)
        except Exception as error:
            if isinstance(error, OperationalError | InterfaceError) or is_refusing(error):
                raise  # the database's own state
            if isinstance(error, Rejected):
                error.then()
            else:
                log.exception("a shop's post cannot be used", source=source, post=str(post.id))
            post.state, post.reason = PostState.UNUSABLE, make_storable(explain(error))[:1000]
            if isinstance(error, UnknownStatus):
                post.unknown_status = error.status
        post.save(update_fields=_WRITTEN)
        result = _RESULTS[PostState(post.state)]
        if is_of_erased(post.order_id, post.address_hashes):
            ConnectionPost.objects.filter(id=post.id).erase()
            post.reason = ""  # it may quote the body
        after_commit(lambda: _tell(post, result))
    return result


def retry(*, ids: Iterable[uuid.UUID]) -> list[uuid.UUID]:
    """Have unusable posts tried again, after those that came before. Return the ids of the changed ones."""
    with transaction.atomic():
        rows = ConnectionPost.objects.unusable().filter(id__in=list(ids)).order_by("id").select_for_update()
        changed = list(rows.values_list("id", flat=True))
        ConnectionPost.objects.filter(id__in=changed).update(state=PostState.WAITING, reason="")
    return changed


def _end_older(ids: list[uuid.UUID]) -> None:
    """End the posts of an order that a newer one made needless, and empty those of an erased person."""
    rows = ConnectionPost.objects.waiting().filter(id__in=ids)
    by_hashes: dict[tuple[str, ...], list[uuid.UUID]] = {}
    for id, order_id, hashes in rows.values_list("id", "order_id", "address_hashes"):
        by_hashes.setdefault((str(order_id), *hashes), []).append(id)
    rows.update(state=PostState.DONE, done_at=Now(), reason=LATE)
    for (order, *hashes), same in by_hashes.items():
        if is_of_erased(uuid.UUID(order), hashes):
            ConnectionPost.objects.filter(id__in=same).erase()


class _Turn(NamedTuple):
    newest: uuid.UUID  # the post to process
    older: list[uuid.UUID]  # those that it makes needless


def _find_turn(post: ConnectionPost, shop: ShopConnection) -> _Turn:
    """Return the newest waiting post of an order whose oldest is `post`, since each has the whole order.

    It must be as certain as that of `post` what the shop had told: saves before going live are apart from
    those since then. A save that lies ahead of its post's arrival is not known to be the newest. If a late
    post is read again, the time of a post says too little for any to be needless.
    """
    if platform_of(shop).read_again is not None:
        return _Turn(post.id, [])
    offset = clock_offset(shop, also=post)
    live_at = shop.live_at if shop.state == ShopConnection.State.LIVE else None

    def side(received_at: dt.datetime, saved_at: dt.datetime | None) -> bool | None:
        """Return on which side of going live a save is; None if its time is not certain."""
        if saved_at is None or not is_before(saved_at, received_at, offset):
            return None
        return live_at is not None and saved_at + offset >= live_at

    of_post = side(post.received_at, post.modified_at)
    if post.order_id is None or post.is_history or of_post is None:
        return _Turn(post.id, [])
    rows = ConnectionPost.objects.waiting().filter(
        source=post.source, order_id=post.order_id, address=post.address, is_history=False
    )
    read = rows.order_by("id").values_list("id", "received_at", "modified_at")
    # One without a certain time keeps its place among the others.
    certain = itertools.takewhile(lambda row: side(row[1], row[2]) is not None, read)
    same = [(saved_at, id) for id, received_at, saved_at in certain if side(received_at, saved_at) is of_post]
    ids = [id for _, id in sorted(same)]
    return _Turn(ids[-1], ids[:-1])


def list_foreign(shop: ShopConnection) -> list[str]:
    """Return the addresses of posts that cannot be used because the connection does not know them."""
    unusable = ConnectionPost.objects.unusable().filter(source=shop.source).exclude(address="")
    addresses = unusable.order_by("address").values_list("address", flat=True).distinct()[:MOST_FOREIGN]
    return [address for address in addresses if not shop.has_address(address) and not shop.is_copy(address)]


def find_order_id(shop: ShopConnection, head: ShopHead) -> uuid.UUID:
    """Return our id of an order. Another one with the same id in the shop has its key in it."""
    id = our_id(source=shop.source, id=head.id)
    if not head.key:
        return id
    key = Order.objects.filter(id=id).values_list("shop_key", flat=True).first()
    return id if key in (None, "", head.key) else our_id(source=shop.source, id=f"{head.id} {head.key}")


_ERASED = """
    SELECT EXISTS (SELECT FROM orders WHERE id = %(order_id)s AND email = %(erased)s) OR EXISTS (
        SELECT FROM erasures WHERE address_hash = ANY(%(hashes)s)
            AND coalesce(repeated_at, requested_at) > coalesce(
                (SELECT created_at FROM orders WHERE id = %(order_id)s),
                %(placed_at)s::timestamptz, '-infinity'))
    """


def is_of_erased(
    order_id: uuid.UUID | None, hashes: Sequence[str], *, placed_at: dt.datetime | None = None
) -> bool:
    """Return whether a body is about an erased person.

    Its order is erased, or an address in it was erased after the order was placed: a customer who came back
    is no erased one. An order that is not here was placed at `placed_at`, or before any erasure if that is
    None.
    """
    values = {
        "order_id": order_id,
        "hashes": list(hashes),
        "erased": ERASED_ADDRESS,
        "placed_at": placed_at,
    }
    with connection.cursor() as cursor:
        cursor.execute(_ERASED, values)
        return bool(cursor.fetchone()[0])


def _lock(source: str) -> bool:
    """Take the lock of a connection until the end of the transaction, or return False at once."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_try_advisory_xact_lock(hashtext('connection_posts'), hashtext(%s))", [source]
        )
        return bool(cursor.fetchone()[0])


def _process_or_repeat(post: ConnectionPost, shop: ShopConnection) -> None:
    """Apply a post. Raise `Rejected`, and any other error of a handler or the database."""
    until = time.monotonic() + _CHANGES_SECONDS
    try:
        _apply(post, shop, until=until)
    except IntegrityError:
        # There was no row to lock, and another session has inserted the order since. Now there is one.
        _apply(post, shop, until=until)


def _apply(post: ConnectionPost, shop: ShopConnection, *, until: float) -> None:
    """Apply a post's changes, or if they are not done in time, its newest state as one change."""
    try:
        with transaction.atomic():
            _process(post, shop, most=MOST_CHANGES, until=until)
    except TooSlow:
        with transaction.atomic():
            _process(post, shop, most=0, until=math.inf)


def _process(post: ConnectionPost, shop: ShopConnection, *, most: int, until: float) -> None:
    platform, body = platform_of(shop), post.body.encode()
    head = platform.read_head(body)
    if head is None:  # a post about something else
        return
    id = find_order_id(shop, head)
    post.order_id, post.reference = id, head.id[:100]  # for a person, if the rest is unusable
    post.address = head.address
    if shop.is_copy(head.address):
        post.reason = f"left out: it is from the copy at {head.address}"
        return
    if not shop.has_channel(head.channel):
        post.reason = f"left out: it is of the channel {head.channel}"
        return
    if not shop.has_address(head.address):
        raise Rejected(f"this post is from {head.address}, which the connection's page asks about")
    if head.must_be_read:
        raise MustBeRead
    there = platform.read(body, locale=default_locale(source=shop.source))
    assert there is not None
    offset = clock_offset(shop, also=post)
    there = there.on_our_clock(offset, received_at=post.received_at)
    with write_once(Order, id) as held, context.working_for(context.Context(post.id.hex)):
        order, _ = lock_row(Order, id)
        if order is not None and order.source != shop.source:
            raise Rejected(f"the order belongs to {order.source or 'this system'}, not to {shop.source}")
        here = read_here(order) if order is not None else None
        is_old = platform.read_again is not None and here is not None and is_late(there, here)
        if is_old and _may_be_news(post, cast("Here", here), offset):
            raise MustBeRead(_time_here(cast("Here", here), offset))
        post.due_at = due_at(here, there, source=shop.source, received_at=post.received_at)
        if post.due_at is not None and post.due_at > timezone.now():
            return
        differences = find_changes(
            here,
            there,
            shop=shop,
            received_at=post.received_at,
            first_post_at=_first_post_at(post) if there.is_import else None,
            most=most,
        )
        if differences.changes and _was_saved_meanwhile(post, there, offset):
            raise MustBeRead
        if post.is_history:
            silent = [change._replace(notify=False) for change in differences.changes]
            differences = differences._replace(changes=silent)
        elif _may_be_of_trial(shop, here, differences):
            differences = differences._replace(doubts=[*differences.doubts, OF_TRIAL])
        if there.parent and not there.silent:
            number = differences.order.number
            after_commit(lambda: _note_parent(shop, number))  # a post that comes must not wait for this row
        if shop.unmailed is None and (event := find_unmailed(shop, differences.changes)):
            number = differences.order.number
            after_commit(lambda: _note_unmailed(shop, event, number))
        post.reason = differences.left_out
        post.reference = differences.order.number[:100]
        save_changes(differences, here, shop, id=id, received_at=post.received_at, until=until)
        order = cast("Order | None", held.row)
        if order is not None:
            order.shop_key = order.shop_key or head.key
            newest = filter(None, [order.reported_at, differences.order.as_of])
            order.reported_at = max(newest, default=NEVER)


def _may_be_news(post: ConnectionPost, here: Here, offset: dt.timedelta) -> bool:
    """Return whether a late post may tell more than is stored: it came after that was read in the shop.

    The time of what is stored is by the shop's clock, which may be ahead, unless a worker read the order.
    """
    stored_at = _time_here(here, offset)
    if stored_at is None or post.received_at > stored_at:
        return True
    same = ConnectionPost.objects.filter(source=post.source, order_id=post.order_id, state=PostState.DONE)
    readings = same.filter(modified_at=None, received_at__gte=stored_at)
    return post.received_at > stored_at - CLOCKS_APART and not readings.exists()


def _was_saved_meanwhile(post: ConnectionPost, there: ShopOrder, offset: dt.timedelta) -> bool:
    """Return whether a post was processed that came after the shop was asked for this order.

    Its save may be newer than what was read, and have an earlier time: a shop's clock may be behind.
    """
    if there.read_at is None:
        return False
    same = ConnectionPost.objects.filter(source=post.source, order_id=post.order_id, state=PostState.DONE)
    return same.filter(modified_at__isnull=False, received_at__gte=there.read_at + offset).exists()


def _time_here(here: Here, offset: dt.timedelta) -> dt.datetime | None:
    """Return by our clock of when the state of an order is. It may lie ahead by `CLOCKS_APART`."""
    return here.order.reported_at and here.order.reported_at + offset


def _note_parent(shop: ShopConnection, reference: str) -> None:
    """Note an order below another one, until the connection's page has an answer."""
    seen = shop.parents.get("seen", [])
    if shop.parents.get("are") or reference in seen or len(seen) >= MOST_SEEN:
        return
    shops = ShopConnection.objects.filter(id=shop.id).exclude(parents__has_key="are")
    shops.update(parents={"seen": [*seen, reference]})


def _note_unmailed(shop: ShopConnection, event: str, reference: str) -> None:
    """Note a change about which nobody sends an e-mail, of which the connection's page and an alert tell."""
    unmailed = {"event": event, "reference": reference}
    ShopConnection.objects.filter(id=shop.id, unmailed__isnull=True).update(unmailed=unmailed)


#: The time of the newest save of an order of which none has a usable time.
NEVER = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
#: The line for a change of which nobody knows whether it was made in the trial.
OF_TRIAL = (
    "going live: The shop was not compared at that moment. If this was changed before, the shop has told it,"
    " too."
)


def _may_be_of_trial(shop: ShopConnection, here: Here | None, differences: Differences) -> bool:
    """Return whether a change that is told may have been made in the trial, by a save whose post was lost."""
    if here is None or here.order.reported_at is None or shop.live_at is None:
        return False
    was_compared = not (shop.going_live or {}).get("problem")
    if was_compared or here.order.reported_at >= shop.live_at:
        return False
    return any(change.notify and change.at >= shop.live_at for change in differences.changes)


def _first_post_at(post: ConnectionPost) -> dt.datetime | None:
    """Return when the first post of an order came, or None if it is this one."""
    earlier = ConnectionPost.objects.filter(source=post.source, order_id=post.order_id, id__lt=post.id)
    return earlier.order_by("id").values_list("received_at", flat=True).first()


def _tell(post: ConnectionPost, result: Step) -> None:
    if result == "later":
        return
    counted = "processed" if result == "done" else result
    metrics.POSTS.labels(post.source, counted).inc()
    if result == "unusable":
        log.warning("post of a shop not used", source=post.source, post=str(post.id), reason=post.reason)
    else:
        log.info("post of a shop processed", source=post.source, post=str(post.id))
