"""The surprises in a shop's posts: statuses without a meaning, currencies without e-mails, what ours lack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django.db.models import Case, Count, F, Max, TextField, Value, When
from django.db.models.functions import Coalesce, Length
from django.db.models.lookups import LessThan

from events.consuming.envelope import Rejected
from orders.models import Order
from shop_connections.currency import UnknownCurrency
from shop_connections.models import ConnectionPost, ConnectionPostQuerySet, ShopConnection
from shop_connections.platforms import platform_of
from shop_connections.setup import Lack
from shop_connections.shop_order import ShopOrder

#: How many posts are read, and the characters of the largest body: a page must not read megabytes.
MOST_READ, MOST_CHARACTERS = 100, 50_000
#: Of how many reasons a page tells.
MOST_REASONS = 100


#: The body of a post, unless it is large.
_TEXT = Case(
    When(LessThan(Length("body"), MOST_CHARACTERS), then=F("body")),
    default=Value(""),
    output_field=TextField(),
)


class UnusableStatus(NamedTuple):
    word: str
    orders: int


class UnusablePosts(NamedTuple):
    statuses: Sequence[UnusableStatus]  # those for which posts cannot be used
    reasons: Sequence[str]  # each once, and first that of the newest post


class SeenPosts(NamedTuple):
    events: frozenset[str]  # that are told only of some shops' orders
    lacks: Sequence[tuple[Lack, str]]  # each once, with the number of the newest order
    currencies: Sequence[str]  # that get no e-mail


def sum_up_unusable(shop: ShopConnection, posts: ConnectionPostQuerySet) -> UnusablePosts:
    """Return why posts cannot be used, by one statement that reads no body."""
    each = posts.values("reason", "unknown_status").annotate(
        orders=Count(Coalesce("order_id", "id"), distinct=True), newest=Max("received_at")
    )
    rows = each.order_by("-unknown_status", "-newest")[:MOST_REASONS]  # those with a status first
    statuses = [UnusableStatus(row["unknown_status"], row["orders"]) for row in rows]
    reasons = [row["reason"] for row in sorted(rows, key=lambda row: row["newest"], reverse=True)]
    return UnusablePosts(
        statuses=sorted(each for each in statuses if each.word and each.word not in shop.statuses),
        reasons=list(dict.fromkeys(reasons)),
    )


def read_seen(shop: ShopConnection) -> SeenPosts:
    """Read the newest posts of a shop, for the page before going live."""
    rows = ConnectionPost.objects.filter(source=shop.source)
    read = rows.order_by("-id").values_list(_TEXT, "reference")[:MOST_READ]
    events, lacks, currencies = set[str](), dict[Lack, str](), dict[str, None]()
    for text, reference in read:
        if not text:
            continue
        for lack in platform_of(shop).setup.find_lacks(text.encode()):
            lacks.setdefault(lack, reference)
        order, currency = _read(shop, text)
        if currency:
            currencies[currency] = None
        if order is not None and _is_paid_on_delivery(shop, order):
            events.add("order.confirmed")
    return SeenPosts(frozenset(events), list(lacks.items()), list(currencies))


def _is_paid_on_delivery(shop: ShopConnection, order: ShopOrder) -> bool:
    status = shop.statuses.get(order.shop_status, order.status)
    return status in (Order.Status.PAID, Order.Status.CONFIRMED) and order.paid_at is None


def _read(shop: ShopConnection, text: str) -> tuple[ShopOrder | None, str]:
    """Return the order in a body, and its currency if that is why it cannot be read."""
    if not text:
        return None, ""
    try:
        return platform_of(shop).read(text.encode(), locale="en"), ""
    except UnknownCurrency as unknown:
        return None, unknown.currency
    except Rejected:
        return None, ""
    except Exception:  # noqa: BLE001 - processing it has logged the error
        return None, ""
