"""The first page's tiles about providers and their breakers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django.http import HttpRequest
from django.urls import reverse

from outbox.conditions import PROVIDERS
from outbox.drain import gate
from outbox.gate.gate import ProviderState
from runtime.conditions import ActiveCondition, Facts, decide
from web.admin.tiles import Tile, attention, sentences

PERMISSION = "notifications.view_emailnotification"


def provider_conditions(views: Sequence[ProviderState]) -> list[ActiveCondition]:
    """Return the conditions of the breakers as this process sees them, or only BrokerDown without Valkey."""
    providers = {view.provider: view for view in views}
    return decide(Facts({PROVIDERS: providers if gate().is_shared else None}))


@attention(20)
def breakers(request: HttpRequest) -> Iterator[Tile]:
    """Show the sentences of the breakers' conditions, or that all work."""
    if not request.user.has_perm(PERMISSION):
        return
    views = gate().read_providers()
    active = provider_conditions(views)
    url = reverse("admin:providers")
    yield from sentences(url, active)
    if not active:
        at_rest = [f"{view.provider}: {view.words}" for view in views if view.words != "working"]
        words = f"{len(at_rest)} of {len(views)}" if at_rest else "working"
        yield Tile(label=", ".join(at_rest) or "providers", url=url, words=words)
