"""The conditions of connected shops: secrets, signatures, posts, and comparisons with their API."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from django.conf import settings
from django.db import connection
from django.db.models import TextField
from django.db.models.expressions import RawSQL

from runtime import conditions
from runtime.conditions import HOUR, Alert, Condition, Counted, Measurement, Query, Row, time_in_words
from runtime.models import Pause
from shop_connections.models import ConnectionPost, ShopConnection

#: A shop's rhythm is the number of days with a post among so many.
RHYTHM_DAYS = 7
#: A signed post so soon before a refused one, or later, shows that the shop has the right secret.
SIGNED_WITHIN = dt.timedelta(seconds=20)

_SELECT = """
    SELECT id, source, secret, api_key, api_secret, check_problem, unmailed, left_on,
    last_post_at, refused_at,
    coalesce(checked_at, CASE WHEN tried_at IS NOT NULL THEN created_at END) AS checked_at,
    CASE WHEN last_post_at < statement_timestamp() - interval '1 day' THEN (
        SELECT count(*) FROM generate_series(0, {days} - 1) AS day WHERE EXISTS (
            SELECT FROM connection_posts AS post
            WHERE post.source = shop.source
                AND done_at <= last_post_at + interval '1 hour' - day * interval '1 day'
                AND done_at > last_post_at + interval '1 hour' - (day + 1) * interval '1 day'
        )
    ) END AS days, (
        SELECT count(*) FROM (
            {unusable}
        ) AS row
    ) AS unusable, (
        SELECT count(*) FROM (
            SELECT FROM connection_posts AS post
            WHERE post.source = shop.source AND post.state = 'missing' LIMIT {most}
        ) AS row
    ) AS missing, (
        SELECT count(*) FROM (
            SELECT FROM connection_posts AS post
            WHERE post.source = shop.source AND post.state = 'waiting'
              AND (due_at IS NULL OR due_at < statement_timestamp())
            LIMIT {most}
        ) AS row
    ) AS waiting, coalesce((
        SELECT extract(epoch FROM statement_timestamp() - coalesce(due_at, received_at))::float8
        FROM connection_posts AS post
        WHERE post.source = shop.source AND post.state = 'waiting'
          AND (due_at IS NULL OR due_at < statement_timestamp())
        ORDER BY id LIMIT 1
    ), 0) AS waiting_seconds
    FROM shop_connections AS shop WHERE shop.state <> 'off'
"""


def _select() -> str:
    of_shop = RawSQL("shop.source", [], output_field=TextField())
    unusable = ConnectionPost.objects.unusable_still().filter(source=of_shop).values("id")[: conditions.MOST]
    select = connection.ops.compose_sql(*unusable.query.sql_with_params())  # type: ignore[attr-defined]
    return _SELECT.format(most=conditions.MOST, days=RHYTHM_DAYS, unusable=select)


class ShopPosts(NamedTuple):
    """The state of a shop's secrets and posts."""

    is_readable: bool  # CONNECTION_KEY decrypts its secrets
    unusable: int
    missing: int
    waiting: int  # for a worker
    waiting_seconds: float  # since the first of them came
    read_at: dt.datetime
    last_post_at: dt.datetime | None  # signed
    days: int  # of the `RHYTHM_DAYS` up to a last post that is over a day old, those with a post
    refused_at: dt.datetime | None  # the last post with a wrong signature
    checked_at: dt.datetime | None  # the last comparison with the shop's API, if it has a key of it
    problem: str  # of the last comparison
    #: The first change since going live about which nobody sent an e-mail: {event, reference}.
    unmailed: Mapping[str, str]
    left_on: Mapping[str, str]

    @property
    def is_unmailed(self) -> bool:
        """Return whether nobody sends this e-mail."""
        event = self.unmailed.get("event")
        return event is not None and event not in settings.NOTIFY_ON and event not in self.left_on

    @property
    def is_refused(self) -> bool:
        """Return whether a post with a wrong signature came within a day, and no signed one since."""
        if self.refused_at is None or self.read_at - self.refused_at > dt.timedelta(days=1):
            return False
        return self.last_post_at is None or self.last_post_at < self.refused_at - SIGNED_WITHIN

    @property
    def longest_silence(self) -> dt.timedelta:
        """The length of a usual silence: a day, or more for a shop that posts seldom."""
        return dt.timedelta(days=RHYTHM_DAYS / max(1, self.days))

    def since(self, at: dt.datetime | None) -> str:
        return time_in_words(at, now=self.read_at) if at else "ever"

    def seconds_since(self, at: dt.datetime | None) -> float:
        """Return 0.0 for what never was."""
        return (self.read_at - at).total_seconds() if at else 0.0


def _time(text: str | None) -> dt.datetime | None:
    return dt.datetime.fromisoformat(text) if text else None


def _read(rows: Sequence[Row], now: dt.datetime) -> dict[str, ShopPosts]:
    return {
        row["source"]: ShopPosts(
            ShopConnection(
                secret=row["secret"], api_key=row["api_key"], api_secret=row["api_secret"]
            ).is_readable(),
            row["unusable"],
            row["missing"],
            row["waiting"],
            row["waiting_seconds"],
            now,
            _time(row["last_post_at"]),
            row["days"] or 0,
            _time(row["refused_at"]),
            _time(row["checked_at"] if row["api_key"] else None),
            row["check_problem"],
            row["unmailed"] or {},
            row["left_on"] or {},
        )
        for row in rows
    }


SHOPS: Query[dict[str, ShopPosts]] = Query(
    name="connected shops",
    select=lambda _: _select(),
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


POSTS_REFUSED = Condition(
    code="PostsRefused",
    place=48,
    source=SHOPS,
    measure=lambda shops: [
        Measurement(shop.is_refused, source, {"last": shop.since(shop.last_post_at)})
        for source, shop in shops.items()
    ],
    sentence="posts to {subject} have a wrong signature, and no right one came since {last}",
    do="enter the connection's secret at the shop's webhook, or make another one on the connection's page;"
    " then turn the webhook on again",
    alert=Alert(
        "P2", "1m", "Posts to a connected shop's address are refused, because their signature is wrong."
    ),
    page="connections.shopconnection",
)
EMAIL_OF_NOBODY = Condition(
    code="EmailOfNobody",
    place=49,
    source=SHOPS,
    measure=lambda shops: [
        Measurement(shop.is_unmailed, source, {"event": "", "reference": "", **shop.unmailed})
        for source, shop in shops.items()
    ],
    sentence="neither {subject} nor we send an e-mail for {event}, first for order {reference}",
    do="add it to NOTIFY_ON for all processes, or turn the shop's own e-mail on and say so on the"
    " connection's page",
    alert=Alert("P2", "1m", "Since a shop went live, nobody sends its customers one kind of e-mail."),
    page="connections.shopconnection",
)
SHOP_SILENT = Condition(
    code="ShopSilent",
    place=94,
    source=SHOPS,
    measure=lambda shops: [
        Measurement(
            shop.seconds_since(shop.last_post_at) / shop.longest_silence.total_seconds(),
            source,
            {"last": shop.since(shop.last_post_at)},
        )
        for source, shop in shops.items()
    ],
    limit=1,
    sentence="no post of {subject} since {last}",
    do="look in the shop whether its webhook is active; turn the connection off if the shop is closed",
    alert=Alert("P2", "10m", "A connected shop that used to post has stopped."),
    page="connections.shopconnection",
)
SHOP_NOT_COMPARED = Condition(
    code="ShopNotCompared",
    place=95,
    source=SHOPS,
    measure=lambda shops: [
        Measurement(
            shop.seconds_since(shop.checked_at),
            source,
            {
                "checked": shop.since(shop.checked_at),
                "why": f" ({shop.problem.rstrip('.')})" if shop.problem else "",
            },
        )
        for source, shop in shops.items()
    ],
    limit=6 * HOUR,
    sentence="the orders of {subject} were not compared with its API since {checked}{why}",
    do="try `manage.py connections check SOURCE`, and fix the address or the key on the connection's page",
    alert=Alert("P2", "10m", "The orders of a connected shop were not compared with its API for six hours."),
    page="connections.shopconnection",
)
conditions.register(
    SECRET_UNREADABLE,
    POSTS_REFUSED,
    EMAIL_OF_NOBODY,
    POSTS_LATE,
    POSTS_UNUSABLE,
    CHANGES_MISSED,
    SHOP_SILENT,
    SHOP_NOT_COMPARED,
)
