"""The context of a connection's page: its state, its steps, its questions, and the e-mails of its trial."""

from __future__ import annotations

import datetime as dt
from typing import Any, NamedTuple

from django.conf import settings
from django.db.models import Count, Q
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone

from notifications.models import CONTENT, EmailNotification, MailProfile
from orders.models import Order
from shop_connections import process
from shop_connections.admin.times import say_time
from shop_connections.calls import read_calls
from shop_connections.clocks import clock_offset, describe_clock
from shop_connections.compare import MOST_ASKED, YOUNGEST
from shop_connections.encryption import KeyMissing, encrypt, new_secret
from shop_connections.models import TRIAL, ConnectionPost, ConnectionPostQuerySet, PostState, ShopConnection
from shop_connections.platforms import platform_of
from shop_connections.seen_posts import sum_up_unusable
from web.admin.base import describe_distance
from web.admin.tiles import bounded, count_each

State = ShopConnection.State
COLOURS = {State.WAITING: "pending", State.TRIAL: "processing", State.LIVE: "sent", State.OFF: "discarded"}
#: How many e-mails of the trial, orders that differ, and reasons of unusable posts a page shows.
SHOWN_EMAILS, SHOWN_ORDERS, SHOWN_REASONS = 20, 50, 3
#: Seconds between two refreshes of an open page.
REFRESH_SECONDS = 5
_STEPS = "admin/connections/shopconnection/steps/"
#: What a person may say that a status of a plug-in means.
MEANINGS = [("", "ignore it"), *Order.Status.choices]


class Step(NamedTuple):
    """A step of the page, with its number."""

    id: str
    title: str
    template: str
    is_done: bool
    number: int = 0
    is_open: bool = False


def read_page(request: HttpRequest, shop: ShopConnection, *, new_secret: str = "") -> dict[str, Any]:
    """Return the context of the page, and of the part of it that is refreshed."""
    rows = ConnectionPost.objects.filter(source=shop.source)
    profile = MailProfile.objects.filter(source=shop.source).first()
    last = rows.defer("body").exclude(done_at=None).exclude(reference="").order_by("-done_at").first()
    may_view_posts = request.user.has_perm("connections.view_connectionpost")
    statuses, reasons = sum_up_unusable(shop, rows.unusable_still())
    foreign = process.list_foreign(shop)
    calls, now = read_calls(shop.id), timezone.now()
    has_question = bool(statuses or foreign or (shop.parents.get("seen") and not shop.parents.get("are")))
    context: dict[str, Any] = {
        "original": shop,
        "colour": COLOURS[State(shop.state)],
        "profile": profile,
        "platform": shop.get_platform_display(),
        "setup": platform_of(shop).setup,
        "last": last,
        "last_at": say_time(last.done_at) if last else "",
        "ago": describe_distance(last.received_at) if last else "",
        "is_future": bool(shop.live_at and shop.live_at > now),
        "live_at": say_time(shop.live_at),
        "reasons": reasons[:SHOWN_REASONS] if may_view_posts else [],
        "is_readable": shop.is_readable(),
        "checked_at": say_time(shop.checked_at),
        "most_bytes": f"{settings.DATA_UPLOAD_MAX_MEMORY_SIZE:,}",
        "comparison": describe_comparison(shop),
        "catching_up": shop.is_catching_up(now),
        "clock": describe_clock(clock_offset(shop)),
        "calls": calls,
        "refused_at": say_time(calls.refused_at),
        "was_signed_since": bool(
            calls.refused_at and shop.last_post_at and shop.last_post_at > calls.refused_at
        ),
        "foreign": foreign,
        "unknown_statuses": statuses,
        "meanings": MEANINGS,
        "may_change": request.user.has_perm("connections.change_shopconnection"),
        "may_add_profile": request.user.has_perm("notifications.add_mailprofile"),
        "address": request.build_absolute_uri(reverse("connect", args=[shop.source])),
        "left_on": list(dict.fromkeys((shop.left_on or {}).values())),
        "youngest_minutes": int(YOUNGEST.total_seconds() // 60),
        "seen_secret": shop.secret_mark,
        "offered_secret": "" if "part" in request.GET else _offer_secret(),
        "new_secret": new_secret,
        "refresh_seconds": REFRESH_SECONDS,
        **_count(rows),
    }
    if context["may_change"]:
        context["own"] = platform_of(shop).setup.values(shop, context["address"])
    steps = _list_steps(shop, context, has_question=has_question)
    context["has_question"] = has_question
    context |= {"steps": steps, "is_set_up": all(step.is_done for step in steps)}
    context["missing_orders"] = list(rows.missing().order_by("-id").defer("body")[:SHOWN_ORDERS])
    if request.user.has_perm("notifications.view_emailnotification"):
        context |= _trial_emails(shop)
    else:
        context |= {"emails": None, "emails_of": ""}
    return context


def _offer_secret() -> str:
    """Return a new secret, encrypted, which the page's button makes the connection's."""
    try:
        return encrypt(new_secret())
    except KeyMissing:
        return ""


def _count(rows: ConnectionPostQuerySet) -> dict[str, int]:
    """Count the posts that wait for a worker or a person, in one statement."""
    still = rows.unusable_still().values("id")
    is_open = rows.filter(state__in=[PostState.WAITING, PostState.MISSING]) | rows.filter(id__in=still)
    counts: dict[str, int] = is_open.aggregate(
        **{state: Count("id", filter=Q(state=state)) for state in ("waiting", "unusable", "missing")}
    )
    return counts


def _list_steps(shop: ShopConnection, context: dict[str, Any], *, has_question: bool) -> list[Step]:
    """Return the steps in their order. The next one is open, and those with a secret or a question."""
    setup, calls = context["setup"], context["calls"]
    is_live = shop.state == State.LIVE
    has_sender = context["profile"] is not None
    steps = [
        Step("profile", "Give the shop a profile", f"{_STEPS}profile.html", has_sender),
        *(Step(step.id, step.title, step.template, step.is_done(shop, calls)) for step in setup.connect),
        Step("order", "The first order comes", f"{_STEPS}order.html", context["last"] is not None),
        *(Step(step.id, step.title, step.template, step.is_done(shop, calls)) for step in setup.later),
        Step(
            "statuses",
            "Answer what the shop's orders ask",
            f"{_STEPS}statuses.html",
            context["last"] is not None and not has_question,
        ),
        Step(
            "emails",
            "Say which of the shop's own e-mails go",
            f"{_STEPS}emails.html",
            shop.left_on is not None,
        ),
        Step("live", "Go live", f"{_STEPS}live.html", is_live),
    ]
    opened = {next((step.id for step in steps if not step.is_done), "")}
    if context["new_secret"]:
        opened |= {step.id for step in setup.connect if "secret" in step.acts}
    opened |= {"statuses"} if has_question else set()
    return [
        step._replace(number=number, is_open=step.id in opened) for number, step in enumerate(steps, start=1)
    ]


def describe_comparison(shop: ShopConnection) -> dict[str, Any]:
    """Return how far the comparison is that a person asked for, or what it found."""
    stored = shop.comparison or {}
    done_at, began_at = stored.get("done_at"), stored.get("began_at") or stored.get("asked_at")
    if began_at and not done_at and timezone.now() - dt.datetime.fromisoformat(began_at) > MOST_ASKED:
        # its worker may have died, or there may be none
        stored, done_at = stored | {"problem": "It was not done in time."}, began_at
    return {
        "is_running": bool(stored) and not done_at,
        "has_begun": "began_at" in stored,
        "read": stored.get("read", 0),
        "missing": stored.get("missing", 0),
        "is_whole": stored.get("is_whole", True),
        "problem": stored.get("problem", ""),
        "done_at": say_time(dt.datetime.fromisoformat(done_at)) if done_at else "",
    }


def _trial_emails(shop: ShopConnection) -> dict[str, Any]:
    """Return the newest e-mails that were written and not sent, and of how many if there are more."""
    rows = EmailNotification.objects.filter(
        source=shop.source, shop_copy_of=None, status=TRIAL.status, ended_by=TRIAL.ended_by
    ).defer(*CONTENT[1:])
    (count,) = count_each([rows])
    shown = list(rows.order_by("-id")[:SHOWN_EMAILS])
    return {"emails": shown, "emails_of": bounded(count) if count > len(shown) else ""}
