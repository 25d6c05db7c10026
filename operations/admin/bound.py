"""The first page's banner for a user who is bound to some shops, or to none."""

from __future__ import annotations

from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from web.admin.rights import shops_of
from web.admin.tiles import panel


@panel(3)
def bound_to(request: HttpRequest) -> SafeString:
    """Say which shops the page has, unless it has all."""
    if (shops := shops_of(request)).is_unbound:
        return SafeString("")
    if not shops.words:
        text = "You are bound to no shop yet. A superuser binds you on the page of your user, under Set-up."
    else:
        text = f"You see {shops} alone. Charts, providers and processes are about all shops."
    return format_html('<p class="help">{}</p>', text)
