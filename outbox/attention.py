"""The first page's tiles about providers and their breakers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django.http import HttpRequest
from django.urls import reverse

from outbox.conditions import PROVIDERS, VALKEY_DOWN
from outbox.drain import gate
from outbox.gate.breaker import BreakerState
from outbox.gate.gate import ProviderState
from runtime.conditions import ActiveCondition, Facts, decide
from web.admin.tiles import Tile, attention, sentences

PERMISSION = "notifications.view_emailnotification"


def provider_conditions(views: Sequence[ProviderState]) -> list[ActiveCondition]:
    """Return the conditions of the breakers as this process sees them, or only BrokerDown without Valkey."""
    providers = {view.provider: (view.state, view.breaker.forced) for view in views}
    return decide(Facts({PROVIDERS: providers if gate().is_shared else None}))


@attention(20)
def breakers(request: HttpRequest) -> Iterator[Tile]:
    """Show the providers whose breaker is not closed or is forced."""
    if not request.user.has_perm(PERMISSION):
        return
    views = gate().read_providers()
    wrong = [
        f"{view.provider} {f'forced {view.breaker.forced}' if view.breaker.forced else view.state}"
        for view in views
        if view.state is not BreakerState.CLOSED or view.breaker.forced
    ]
    active = provider_conditions(views)
    url = reverse("admin:providers")
    yield from sentences(url, (item for item in active if item.condition is VALKEY_DOWN))
    yield Tile(
        label=", ".join(wrong) if wrong else "providers",
        url=url,
        words=f"{len(wrong)} of {len(views)}" if wrong else "sending",
        conditions=[item for item in active if item.condition is not VALKEY_DOWN],
        help="Circuit breakers that are open, paused or forced.",
    )
