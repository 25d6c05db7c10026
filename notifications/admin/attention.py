"""The first page's tiles and charts of e-mails and providers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django.http import HttpRequest
from django.urls import reverse

from notifications.delivery.process import gate
from notifications.models import EmailNotification
from outbox.admin.front import COUNT_LIMIT, FrontPage, Series, Tile, attention, sentences, show_series
from outbox.conditions import Condition, Facts, decide
from outbox.delivery.gate.breaker import State
from outbox.delivery.gate.gate import ProviderState
from outbox.delivery.rows.outcomes import Status

PERMISSION = "notifications.view_emailnotification"
#: Among the e-mails that have been due the longest: those that failed, an hour after they were first due.
_FAILING = f"""
    SELECT 1 FROM (
        SELECT errors, resent_at, created_at FROM email_notifications
        WHERE status IN ('pending', 'failed') ORDER BY next_attempt_at LIMIT {COUNT_LIMIT + 1}
    ) AS longest
    WHERE errors <> '[]' AND coalesce(resent_at, created_at) < statement_timestamp() - interval '1 hour'
"""  # noqa: S608 - only a constant is inserted


def _list(query: str) -> str:
    return f"{reverse('admin:notifications_emailnotification_changelist')}?{query}"


@attention(10)
def mails(request: HttpRequest) -> Iterator[Tile]:
    if not request.user.has_perm(PERMISSION):
        return
    mails, found = EmailNotification.objects.all(), FrontPage.of(request).found
    yield Tile(
        label="dead letters",
        url=_list("status=dead_lettered"),
        found=found("EmailDeadLetters"),
        help="Not tried again until a person resends them or gives them up.",
    )
    yield from sentences(_list("status=pending"), found("EmailOverdue"))
    yield from sentences(_list("status=processing"), found("EmailProcessingStuck"))
    yield Tile(
        label="failing for an hour",
        url=_list("failing=hour"),
        rows=(_FAILING, []),
        help="Retried, because nothing shows yet whether the e-mail or the provider causes the failures.",
    )
    yield Tile(
        label="suppressed",
        url=_list("status=suppressed"),
        rows=mails.filter(status=Status.SUPPRESSED),
        help="Not sent, because the address bounced, complained, or was suppressed or erased by a person.",
    )
    yield Tile(
        label="waiting to be sent",
        url=_list("status=pending"),
        rows=mails.filter(status=Status.PENDING),
        help="Not tried yet, or waiting for a provider that is down.",
    )


def provider_conditions(views: Sequence[ProviderState]) -> list[Condition]:
    """Return the conditions of the breakers as this process sees them, or only BrokerDown without Valkey."""
    providers = {view.provider: (view.state, view.breaker.forced) for view in views}
    return decide(Facts(providers=providers if gate().is_shared else None))


@attention(20)
def breakers(request: HttpRequest) -> Iterator[Tile]:
    """Show the providers whose breaker is not closed or is forced."""
    if not request.user.has_perm(PERMISSION):
        return
    views = gate().read_providers()
    wrong = [
        f"{view.provider} {f'forced {view.breaker.forced}' if view.breaker.forced else view.state}"
        for view in views
        if view.state is not State.CLOSED or view.breaker.forced
    ]
    found = provider_conditions(views)
    url = reverse("admin:notifications_emailnotification_providers")
    yield from sentences(url, (one for one in found if one.code == "BrokerDown"))
    yield Tile(
        label=", ".join(wrong) if wrong else "providers",
        url=url,
        words=f"{len(wrong)} of {len(views)}" if wrong else "sending",
        found=[one for one in found if one.code != "BrokerDown"],
        help="Circuit breakers that are open, paused or forced.",
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
