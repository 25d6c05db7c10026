"""The first page's tiles about providers and their breakers."""

from __future__ import annotations

from collections.abc import Iterator

from django.http import HttpRequest
from django.urls import reverse

from outbox.conditions import PROVIDERS, VALKEY, read_valkey
from runtime.conditions import Facts, decide
from web.admin.rights import shops_of
from web.admin.tiles import Tile, attention, sentences

PERMISSION = "notifications.view_emailnotification"


def may_view(request: HttpRequest) -> bool:
    """Return whether the user may see the providers, which send the e-mails of all shops."""
    return request.user.has_perm(PERMISSION) and shops_of(request).is_unbound


@attention(20)
def breakers(request: HttpRequest) -> Iterator[Tile]:
    """Show the sentences of the breakers' conditions, or that all work."""
    if not may_view(request):
        return
    providers, trouble = read_valkey()
    active = decide(Facts({PROVIDERS: providers, VALKEY: trouble}))
    url = reverse("admin:providers")
    yield from sentences(url, active)
    if not active:
        views = providers or {}
        at_rest = [f"{name}: {view.words}" for name, view in views.items() if view.words != "working"]
        words = f"{len(at_rest)} of {len(views)}" if at_rest else ""
        yield Tile(label=", ".join(at_rest) or "providers", url=url, words=words)
