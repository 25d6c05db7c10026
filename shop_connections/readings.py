"""Read orders from their shops' API whose posts do not tell them: those that came late or have errors.

No lock and no transaction is open while a shop answers. The order takes the place of the post's body, and the
post is then processed as any other.
"""

from __future__ import annotations

import datetime as dt
import time
from collections import deque

import structlog
from django.conf import settings
from django.db import InterfaceError, OperationalError
from django.db.models import Max
from django.db.models.functions import Now
from django.utils import timezone

from events.consuming.inbox import explain
from runtime.models import Pause
from runtime.personal_data import hashes_in
from runtime.texts import make_storable
from shop_connections import process
from shop_connections.clocks import clock_offset
from shop_connections.http import ShopUnreachable
from shop_connections.models import ConnectionPost, ConnectionPostQuerySet, PostState, ShopConnection
from shop_connections.platforms import PLATFORMS, platform_of

log = structlog.get_logger(__name__)

#: How long one call of `read_some` lasts, and one reading.
LONGEST_SECONDS, READING_SECONDS = 5.0, 10.0
#: How often a reading may fail, and the pause from the first try to the next, which doubles with each.
MOST_FAILURES, FIRST_PAUSE = 8, dt.timedelta(seconds=15)
GONE = "left out: the shop no longer has this order"


def is_waiting() -> bool:
    """Return whether an order of an active connection is to be read."""
    active = ShopConnection.objects.active().values("source")
    return ConnectionPost.objects.to_read().filter(source__in=active).exists()


def read_some() -> bool:
    """Read orders for some seconds, in turn of each shop. Return whether more are left to read at once.

    A failure ends the turns of its shop, and shops that failed before come last: one that does not answer
    must not stop the others.
    """
    if Pause.objects.filter(part=Pause.Part.CONSUMERS).exists():
        return False  # the poll looks again
    until = time.monotonic() + LONGEST_SECONDS
    shops = {shop.source: shop for shop in ShopConnection.objects.active().filter(platform__in=PLATFORMS)}
    all_posts = ConnectionPost.objects.waiting().filter(failed_readings__isnull=False, source__in=shops)
    by_failures = all_posts.values("source").annotate(most=Max("failed_readings")).order_by("most", "source")
    sources = deque(row["source"] for row in by_failures)
    posts, has_read = ConnectionPost.objects.to_read(), False
    while sources and time.monotonic() < until:
        source = sources.popleft()
        post = posts.filter(source=source).order_by("failed_readings", "id").first()
        if post is None:
            continue
        if not _claim(post):
            sources.append(source)  # another worker reads this one
        elif _read(post, shops[source]):
            sources.append(source)
            has_read = True
    if has_read:
        process.wake()
    return posts.filter(source__in=sources).exists()


def _claim(post: ConnectionPost) -> bool:
    """Count a try before it begins, since it may end the process, and have the post wait until it is over.

    Return False if another worker has claimed the post, or no try is left.
    """
    mine, failures = _own(post), post.failed_readings or 0
    # A person has one tried again without a time. This one waited for the end of its last try.
    if failures >= MOST_FAILURES and post.due_at is not None:
        reason = "its order cannot be read: the process that read it ended"
        mine.update(state=PostState.UNUSABLE, reason=reason, due_at=None)
        return False
    post.failed_readings, post.due_at = failures + 1, timezone.now() + FIRST_PAUSE * 2**failures
    return bool(mine.update(failed_readings=post.failed_readings, due_at=post.due_at))


def _own(post: ConnectionPost) -> ConnectionPostQuerySet:
    """Return the post, unless somebody has claimed, read or erased it since."""
    rows = ConnectionPost.objects.waiting().filter(id=post.id)
    return rows.filter(failed_readings=post.failed_readings, due_at=post.due_at)


def _read(post: ConnectionPost, shop: ShopConnection) -> bool:
    """Read the order of a claimed post. Return whether the shop answered."""
    read_again, offset, asked_at = platform_of(shop).read_again, clock_offset(shop), timezone.now()
    mine = _own(post)
    try:
        if read_again is None:
            raise ShopUnreachable("The platform's orders cannot be read alone.")
        body = read_again(shop, body=post.body.encode(), offset=offset, seconds=READING_SECONDS)
    except (OperationalError, InterfaceError):
        raise  # the database's own state
    except Exception as error:
        if not isinstance(error, ShopUnreachable):
            log.exception("an order of a shop cannot be read", source=shop.source, post=str(post.id))
        _note_failure(post, explain(error))
        return False
    if body is None:
        mine.update(state=PostState.DONE, done_at=Now(), failed_readings=None, due_at=None, reason=GONE)
    elif len(body) > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
        most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        reason = f"its order has more than {most:,} bytes"
        mine.update(state=PostState.UNUSABLE, due_at=None, reason=reason)
    else:
        text = make_storable(body.decode("utf-8", "replace"))
        is_mine = mine.update(
            body=text,
            address_hashes=hashes_in(text),
            failed_readings=None,
            due_at=None,
            reason="",
            received_at=Now(),  # the state is of now, and says nothing about the shop's clock
            modified_at=None,
        )
        if is_mine:
            # It tells more than the other posts of the order that came before.
            same = ConnectionPost.objects.waiting().filter(source=post.source, order_id=post.order_id)
            others = same.filter(failed_readings__isnull=False, received_at__lt=asked_at)
            others.update(failed_readings=None, due_at=None, reason="")
    return True


def _note_failure(post: ConnectionPost, problem: str) -> None:
    """Leave a post that failed too often to a person, after whose word one more failure ends it again."""
    failures = post.failed_readings or 0
    reason = make_storable(f"its order cannot be read: {problem}")[:1000]
    end = {"state": PostState.UNUSABLE, "failed_readings": MOST_FAILURES, "due_at": None}
    _own(post).update(reason=reason, **(end if failures >= MOST_FAILURES else {}))
    log.warning("order of a shop not read", source=post.source, post=str(post.id), problem=reason)
