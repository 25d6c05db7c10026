"""The surprises in a shop's posts: statuses without a meaning, currencies without e-mails, what ours lack."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from django.db.models import Case, F, TextField, Value, When
from django.db.models.functions import Length
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


#: The body of a post, unless it is large.
_TEXT = Case(
    When(LessThan(Length("body"), MOST_CHARACTERS), then=F("body")),
    default=Value(""),
    output_field=TextField(),
)


class UnusableStatus(NamedTuple):
    word: str
    orders: int


class ReadPost(NamedTuple):
    """A post that cannot be used. `word` is the shop's word for the order's status, or "" if it is ours."""

    id: uuid.UUID
    order_id: uuid.UUID | None
    reason: str
    word: str
    currency: str  # one that has no e-mails, or ""


class SeenPosts(NamedTuple):
    events: frozenset[str]  # that are told only of some shops' orders
    lacks: Sequence[tuple[Lack, str]]  # each once, with the number of the newest order
    currencies: Sequence[str]  # that get no e-mail


def read_unusable(shop: ShopConnection, posts: ConnectionPostQuerySet) -> list[ReadPost]:
    """Return the newest of a shop's unusable posts."""
    rows = posts.order_by("-id").values_list("id", "order_id", "reason", _TEXT)
    return [
        ReadPost(id, order_id, reason, *_why(shop, text)) for id, order_id, reason, text in rows[:MOST_READ]
    ]


def statuses_of_unusable(shop: ShopConnection) -> list[tuple[uuid.UUID, str]]:
    """Return the ids of a shop's unusable posts with the status of each order, if it is a plug-in's."""
    posts = ConnectionPost.objects.unusable().filter(source=shop.source)
    return [(post.id, post.word) for post in read_unusable(shop, posts) if post.word]


def count_statuses(shop: ShopConnection, posts: Sequence[ReadPost]) -> list[UnusableStatus]:
    """Return the statuses for which posts cannot be used, with the number of their orders."""
    orders: defaultdict[str, set[object]] = defaultdict(set)
    for post in posts:
        if post.word and post.word not in shop.statuses:
            orders[post.word].add(post.order_id or post.id)
    return [UnusableStatus(word, len(ids)) for word, ids in sorted(orders.items())]


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


def _why(shop: ShopConnection, text: str) -> tuple[str, str]:
    order, currency = _read(shop, text)
    is_unknown = order is not None and order.status is None
    return (order.shop_status if order is not None and is_unknown else ""), currency


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
