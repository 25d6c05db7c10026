"""The first page's tiles and charts of e-mails and providers."""

from __future__ import annotations

from collections.abc import Iterator

from django.http import HttpRequest
from django.urls import reverse

from notifications.conditions import DEAD_LETTERS
from notifications.models import FIRST_DUE, EmailNotification
from notifications.states.transitions import DUE_STATES, Status, list_in_sql
from runtime.binding import Binding
from web.admin.rights import shops_of
from web.admin.tiles import COUNT_LIMIT, FrontPage, Series, Sql, Tile, attention, show_series

PERMISSION = "notifications.view_emailnotification"


def _failing(shops: Binding) -> Sql:
    """Return the e-mails that failed, an hour after they were first due, among those due the longest."""
    is_theirs, values = (
        ("", []) if shops.sources is None else (" AND source = ANY(%s)", [sorted(shops.sources)])
    )
    sql = f"""
        SELECT 1 FROM (
            SELECT errors, {FIRST_DUE} AS first_due FROM email_notifications
            WHERE status IN ({list_in_sql(DUE_STATES)}){is_theirs}
            ORDER BY next_attempt_at LIMIT {COUNT_LIMIT + 1}
        ) AS longest
        WHERE errors <> '[]' AND first_due < statement_timestamp() - interval '1 hour'
    """  # noqa: S608 - only constants are inserted
    return sql, values


def _list(query: str) -> str:
    return f"{reverse('admin:notifications_emailnotification_changelist')}?{query}"


@attention(10)
def emails(request: HttpRequest) -> Iterator[Tile]:
    if not request.user.has_perm(PERMISSION):
        return
    shops = shops_of(request)
    emails = shops.only(EmailNotification.objects.all())
    yield Tile(
        label="dead letters",
        url=_list("status=dead_lettered"),
        # The condition counts those of all shops.
        conditions=FrontPage.of(request).active(DEAD_LETTERS) if shops.is_unbound else (),
        rows=None if shops.is_unbound else emails.dead(),
        help="Not tried again until a person resends them or gives them up.",
    )
    yield Tile(
        label="failing for an hour",
        url=_list("failing=hour"),
        rows=_failing(shops),
        help="Retried, because nothing shows yet whether the e-mail or the provider causes the failures.",
    )
    yield Tile(
        label="suppressed",
        url=_list("status=suppressed"),
        rows=emails.filter(status=Status.SUPPRESSED),
        help="Not sent, because the address bounced, complained, or was suppressed or erased by a person.",
    )
    yield Tile(
        label="waiting to be sent",
        url=_list("status=pending"),
        rows=emails.filter(status=Status.PENDING),
        help="Not tried yet, or waiting for a provider that is down.",
    )


for place, name, title, query, tone in (
    (20, "sent", "Sent", "status=sent&age={age}", "good"),
    (30, "delivered", "Delivered", "status=sent&age={age}", "good"),
    (40, "failed", "Failed attempts", "status=failed&age={age}", "bad"),
):
    show_series(
        Series(
            place=place,
            name=name,
            title=title,
            permission=PERMISSION,
            list_url=lambda query=query: _list(query),  # type: ignore[misc]
            tone=tone,
        )
    )
show_series(
    Series(
        place=50,
        name="bounced",
        title="Bounced",
        permission="notifications.view_suppression",
        list_url=lambda: f"{reverse('admin:notifications_suppression_changelist')}?reason=hard_bounce",
        tone="warn",
    )
)
show_series(
    Series(
        place=60,
        name="sent",
        title="Commit → sent, p50 · p99",
        permission=PERMISSION,
        list_url=lambda: _list("status=sent&age={age}"),
        tone="plain",
        has_durations=True,
    )
)
