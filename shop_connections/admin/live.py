"""The last page before a connection goes live: what will happen, what is missing, and who sends what."""

from __future__ import annotations

from typing import Any

from babel import Locale, UnknownLocaleError
from django.conf import settings
from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone

from notifications.content.profiles import EXAMPLE_SHOP, from_settings, profile_of
from notifications.models import MailProfile
from shop_connections.admin.times import read_time, say_time, write_time
from shop_connections.models import ConnectionPost, ShopConnection
from shop_connections.platforms import platform_of
from shop_connections.seen_posts import read_seen, sum_up_unusable
from shop_connections.services import ShopRefusal, change_state, choose_emails, has_sender
from shop_connections.shop_emails import EmailChoice, list_choices


def read_live_page(request: HttpRequest, shop: ShopConnection) -> dict[str, Any]:
    """Return the context of the page. A form that was refused keeps its answers."""
    seen = read_seen(shop)
    row = MailProfile.objects.filter(source=shop.source).first()
    profile = profile_of(row) if row else from_settings()
    unusable = ConnectionPost.objects.filter(source=shop.source).unusable_still()
    why_unusable = sum_up_unusable(shop, unusable)
    setup = platform_of(shop).setup
    choices = list_choices(shop, seen=seen.events)
    lacks: dict[str, list[tuple[str, str, str]]] = {}
    for lack, reference in seen.lacks:
        lacks.setdefault(lack.email, []).append((lack.what, lack.advice, reference))
    return {
        "shop": shop,
        "is_live": shop.state == shop.State.LIVE and bool(shop.live_at and shop.live_at <= timezone.now()),
        "live_at": say_time(shop.live_at),
        "profile": profile,
        "has_profile": row is not None,
        "has_sender": row is not None or has_sender(shop.source),
        "example": EXAMPLE_SHOP,
        "language": _name_language(profile.default_locale or "en"),
        "unusable": unusable.count(),
        "reasons": why_unusable.reasons[:5]
        if request.user.has_perm("connections.view_connectionpost")
        else [],
        "unknown_statuses": why_unusable.statuses,
        "currencies": seen.currencies,
        "has_delivery": "order.confirmed" in seen.events,
        "choices": [ShopEmailLine(request, shop, choice, lacks) for choice in choices],
        "always_on": [email.name for email in setup.emails if not email.all_events],
        "setup": setup,
        "platform": shop.get_platform_display(),
        "zone": timezone.get_current_timezone_name(),
        "typed_live_at": request.POST.get("live_at", ""),
        "notify_on": settings.NOTIFY_ON,
    }


class ShopEmailLine:
    """One of the shop's e-mails on the page, with what a person has to know of it."""

    def __init__(
        self,
        request: HttpRequest,
        shop: ShopConnection,
        choice: EmailChoice,
        lacks: dict[str, list[tuple[str, str, str]]],
    ) -> None:
        self.name, self.ours, self.lacking = choice.email.name, choice.ours, choice.lacking
        self.may_be_turned_off = choice.may_be_turned_off
        self.events = choice.email.all_events
        self.lacks = lacks.get(self.name, [])
        is_left_on = choice.is_left_on or (shop.left_on is None and bool(self.lacks))
        if request.method == "POST":
            is_left_on = self.name in request.POST.getlist("stay_on")
        self.is_left_on = is_left_on or not self.may_be_turned_off


def go_live(request: HttpRequest, shop: ShopConnection) -> str:
    """Store the choice of e-mails, and go live unless only that was asked for. Raise `ShopRefusal`."""
    stay_on = request.POST.getlist("stay_on")
    with transaction.atomic():
        choose_emails(id=shop.id, stay_on=stay_on, seen=read_seen(shop).events)
        if request.POST.get("action") != "live":
            return "Saved which of the shop's e-mails stay on."
        if "attachments" not in request.POST:
            raise ShopRefusal("Say first that no customer needs what the shop attaches to its e-mails.")
        at = read_time(request.POST.get("live_at", ""))
        changed = change_state(id=shop.id, to=shop.State.LIVE, live_at=at)
    return f"Live from {write_time(changed.live_at)} on." if at and changed.live_at else "Live from now on."


def _name_language(tag: str) -> str:
    try:
        return str(Locale.parse(tag, sep="-").english_name)
    except (UnknownLocaleError, ValueError):
        return tag
