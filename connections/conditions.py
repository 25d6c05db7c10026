"""The conditions of connected shops: secrets that cannot be read, late and unusable posts, missing orders."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import NamedTuple

from connections.models import ShopConnection
from runtime import conditions
from runtime.conditions import Alert, Condition, Counted, Measurement, Query, Row
from runtime.models import Pause

_SELECT = """
    SELECT id, source, secret, api_key, api_secret, (
        SELECT count(*) FROM (
            SELECT FROM connection_posts AS post
            WHERE post.source = shop.source AND done_at IS NULL AND NOT is_missing AND reason <> ''
            LIMIT {most}
        ) AS row
    ) AS unusable, (
        SELECT count(*) FROM (
            SELECT FROM connection_posts AS post
            WHERE post.source = shop.source AND done_at IS NULL AND is_missing LIMIT {most}
        ) AS row
    ) AS missing, (
        SELECT count(*) FROM (
            SELECT FROM connection_posts AS post
            WHERE post.source = shop.source AND done_at IS NULL AND NOT is_missing AND reason = ''
            LIMIT {most}
        ) AS row
    ) AS waiting, coalesce((
        SELECT extract(epoch FROM statement_timestamp() - received_at)::float8 FROM connection_posts AS post
        WHERE post.source = shop.source AND done_at IS NULL AND NOT is_missing AND reason = ''
        ORDER BY id LIMIT 1
    ), 0) AS waiting_seconds
    FROM shop_connections AS shop WHERE state <> 'off'
"""


class ShopPosts(NamedTuple):
    """The state of a shop's secrets and posts."""

    is_readable: bool  # CONNECTION_KEY decrypts its secrets
    unusable: int
    missing: int
    waiting: int  # for a worker
    waiting_seconds: float  # since the first of them came


def _read(rows: Sequence[Row], _: dt.datetime) -> dict[str, ShopPosts]:
    return {
        row["source"]: ShopPosts(
            ShopConnection(
                secret=row["secret"], api_key=row["api_key"], api_secret=row["api_secret"]
            ).is_readable(),
            row["unusable"],
            row["missing"],
            row["waiting"],
            row["waiting_seconds"],
        )
        for row in rows
    }


SHOPS: Query[dict[str, ShopPosts]] = Query(
    name="connected shops",
    select=lambda _: _SELECT.format(most=conditions.MOST),
    read=_read,
    is_optional=True,
)
SECRET_UNREADABLE = Condition(
    code="ConnectionUnreadable",
    place=47,
    source=SHOPS,
    measure=lambda shops: [Measurement(not shop.is_readable, source) for source, shop in shops.items()],
    sentence="the secrets of {subject} cannot be read, and its posts are answered 503",
    do="add the former CONNECTION_KEY after the new one",
    alert=Alert(
        "P1", "1m", "`CONNECTION_KEY` does not read the secrets of a connected shop. Its posts are refused."
    ),
    page="connections.shopconnection",
)
POSTS_LATE = Condition(
    code="PostsLate",
    place=141,
    source=SHOPS,
    measure=lambda shops: [
        Measurement(shop.waiting_seconds, source, {"waiting": Counted(shop.waiting)})
        for source, shop in shops.items()
    ],
    limit=300,
    paused_by=Pause.Part.CONSUMERS,
    sentence="{waiting:post of {subject} has|posts of {subject} wait, and the first has}"
    " waited for more than five minutes",
    do="start a worker, or run `manage.py drain_outbox`",
    alert=Alert("P2", "2m", "A post of a connected shop has waited for five minutes."),
    page="connections.connectionpost?state=waiting",
)
POSTS_UNUSABLE = Condition(
    code="PostsUnusable",
    place=92,
    source=SHOPS,
    measure=lambda shops: [Measurement(shop.unusable, source) for source, shop in shops.items()],
    sentence="{number:post|posts} of {subject} cannot be used",
    do="read the reasons under Posts of shops, remove the cause, and choose Try again",
    alert=Alert("P2", "10m", "Posts of a connected shop cannot be used."),
    page="connections.connectionpost?state=unusable",
)
CHANGES_MISSED = Condition(
    code="ChangesMissed",
    place=93,
    source=SHOPS,
    measure=lambda shops: [Measurement(shop.missing, source) for source, shop in shops.items()],
    sentence="{number:order|orders} of {subject} changed in the shop, and that is missing here",
    do="process what is missing, on the connection's page",
    alert=Alert(
        "P2", "10m", "Posts of a connected shop were lost: its API has changes that are missing here."
    ),
    page="connections.shopconnection",
)
conditions.register(SECRET_UNREADABLE, POSTS_LATE, POSTS_UNUSABLE, CHANGES_MISSED)
