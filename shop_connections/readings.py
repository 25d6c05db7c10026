"""Read orders from their shops' API whose posts do not tell them: those that came late or have errors.

No lock and no transaction is open while a shop answers. The order takes the place of the post's body, and the
post is then processed as any other.
"""

from __future__ import annotations

import datetime as dt
import time

import structlog
from django.conf import settings
from django.db import InterfaceError, OperationalError
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone

from events.consuming.inbox import explain
from runtime.models import Pause
from runtime.personal_data import hashes_in
from runtime.texts import make_storable
from shop_connections import process
from shop_connections.clocks import clock_offset
from shop_connections.http import ShopUnreachable
from shop_connections.models import ConnectionPost, PostState, ShopConnection
from shop_connections.platforms import PLATFORMS, platform_of

log = structlog.get_logger(__name__)

#: How long one call of `read_some` lasts, and one reading.
LONGEST_SECONDS, READING_SECONDS = 5.0, 10.0
#: How often a reading may fail, and the pause after the first failure, which doubles with each.
MOST_FAILURES, FIRST_PAUSE = 8, dt.timedelta(seconds=15)
GONE = "left out: the shop no longer has this order"


def is_waiting() -> bool:
    """Return whether an order of an active connection is to be read."""
    active = ShopConnection.objects.active().values("source")
    return ConnectionPost.objects.to_read().filter(source__in=active).exists()


def read_some() -> bool:
    """Read orders for some seconds. Return whether more are left to read at once."""
    if Pause.objects.filter(part=Pause.Part.CONSUMERS).exists():
        return False  # the poll looks again
    until = time.monotonic() + LONGEST_SECONDS
    shops = {shop.source: shop for shop in ShopConnection.objects.active().filter(platform__in=PLATFORMS)}
    posts = ConnectionPost.objects.to_read().filter(source__in=shops)
    done = 0
    while time.monotonic() < until:
        post = posts.order_by("failed_readings", "id").first()
        if post is None:
            break
        _read(post, shops[post.source])
        done += 1
    if done:
        process.wake()
    return bool(done) and posts.exists()


def _read(post: ConnectionPost, shop: ShopConnection) -> None:
    read_again, offset, asked_at = platform_of(shop).read_again, clock_offset(shop), timezone.now()
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
        return
    rows = ConnectionPost.objects.waiting().filter(id=post.id)  # its person may have been erased meanwhile
    if body is None:
        rows.update(state=PostState.DONE, done_at=Now(), failed_readings=None, reason=GONE)
    elif len(body) > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
        most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        rows.update(state=PostState.UNUSABLE, reason=f"its order has more than {most:,} bytes")
    else:
        text = make_storable(body.decode("utf-8", "replace"))
        rows.update(
            body=text,
            address_hashes=hashes_in(text),
            failed_readings=None,
            due_at=None,
            reason="",
            received_at=Now(),  # the state is of now, and says nothing about the shop's clock
            modified_at=None,
        )
        # It tells more than the other posts of the order that came before.
        same = ConnectionPost.objects.waiting().filter(source=post.source, order_id=post.order_id)
        others = same.filter(failed_readings__isnull=False, received_at__lt=asked_at)
        others.update(failed_readings=None, due_at=None, reason="")


def _note_failure(post: ConnectionPost, problem: str) -> None:
    """Try again later, or leave the post to a person, after whose word one more failure ends it again."""
    failures = (post.failed_readings or 0) + 1
    reason = make_storable(f"its order cannot be read: {problem}")[:1000]
    is_over = failures >= MOST_FAILURES
    ConnectionPost.objects.waiting().filter(id=post.id).update(
        failed_readings=min(failures, MOST_FAILURES),
        reason=reason,
        due_at=None if is_over else timezone.now() + FIRST_PAUSE * 2 ** (failures - 1),
        state=PostState.UNUSABLE if is_over else F("state"),
    )
    log.warning("order of a shop not read", source=post.source, post=str(post.id), problem=reason)
