"""The page of dead letters by cause: number, age, meaning, advice, and buttons for the whole group."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString

from notifications.admin.email_state import WRONG_ADDRESS
from notifications.bulk_actions import RESEND
from notifications.failure_causes import COUNT_LIMIT, cause_of_row, dead_causes, error_code
from notifications.models import CONTENT, EmailNotification, EmailNotificationQuerySet
from notifications.providers.causes import explain_email
from notifications.providers.explanations import Explanation
from notifications.states.transitions import TRIED, EndedBy
from runtime.binding import Binding
from runtime.database.ids import id_time
from web.admin.base import show_time
from web.admin.rights import describe_missing, shops_of
from web.admin.tiles import panel

#: The right to resend a group that a resend cannot help.
HOPELESS = "notifications.resend_hopeless"
#: The number of groups on the page.
SHOWN = 50
ON_FIRST_PAGE = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """One cause on the page. `count` is a text ("9,000+"): only COUNT_LIMIT dead letters are counted."""

    cause: str
    title: str
    count: str
    since: str
    last: str
    example: EmailNotification
    means: Explanation

    @property
    def provider(self) -> str:
        """The provider of all; empty if they waited for several."""
        return self.example.provider if self.example.ended_by in TRIED else ""

    @property
    def resend_helps(self) -> bool:
        """Return whether a resend can succeed, once the cause is removed."""
        return self.means not in WRONG_ADDRESS

    @property
    def is_possibly_sent(self) -> bool:
        """Return whether `manage.py after_restore` made these dead letters. They may have been sent."""
        return self.example.ended_by == EndedBy.RESTORE


def cause_groups(shops: Binding, *, limit: int = SHOWN) -> list[Group]:
    """Return the largest groups of the shops' dead letters, in two statements."""
    most_frequent = dead_causes(shops)
    more = "+" if sum(cause.count for cause in most_frequent) >= COUNT_LIMIT else ""
    causes = most_frequent[:limit]
    fields = ("id", "provider", "ended_by", "last_error", "updated_at", "event_type", "recipient_email")
    newest = EmailNotification.objects.only(*fields).in_bulk([cause.newest for cause in causes])
    shown = [
        (cause, email, _means(email)) for cause in causes if (email := newest.get(cause.newest)) is not None
    ]
    times = collections.Counter(means.title for _, _, means in shown)
    return [
        Group(
            cause=cause.cause,
            title=means.title if times[means.title] == 1 else _with_code(means.title, email),
            count=f"{cause.count:,}{more}",
            since=show_time(id_time(cause.oldest)),
            last=show_time(email.updated_at),
            example=email,
            means=means,
        )
        for cause, email, means in shown
    ]


def may_not_resend(request: HttpRequest, emails: EmailNotificationQuerySet) -> str:
    """Return why the user may not resend these e-mails together, or an empty text.

    As on the page, the newest `COUNT_LIMIT` dead letters count, and the newest one of a cause tells it.
    """
    if request.user.has_perm(HOPELESS):
        return ""
    ids = emails.dead().order_by("-id").values("id")[:COUNT_LIMIT]
    rows = EmailNotification.objects.filter(id__in=ids).annotate(cause=cause_of_row()).defer(*CONTENT)
    for email in rows.order_by("cause", "-id").distinct("cause"):
        if (means := _means(email)) in WRONG_ADDRESS:
            return (
                f"A resend cannot help some of these e-mails: {means.title}. The page Causes resends the"
                f" others by their cause. {describe_missing(request, HOPELESS)}"
            )
    return ""


def _with_code(title: str, email: EmailNotification) -> str:
    """Return a title that several groups have, with the code of the provider's answer if it gave one."""
    code = error_code(email.last_error) if email.ended_by in TRIED else ""
    return f"{title} ({code})" if code else title


def _means(email: EmailNotification) -> Explanation:
    return explain_email(provider=email.provider, ended_by=email.ended_by, error=email.last_error)


class CausesPage(admin.ModelAdmin[EmailNotification]):
    """A mixin of `EmailNotificationAdmin`, which routes to the page."""

    def causes_view(self, request: HttpRequest) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        context: dict[str, Any] = {
            **self.admin_site.each_context(request),
            "title": "Causes",
            "opts": self.opts,
            "groups": cause_groups(shops_of(request)),
            "shown": SHOWN,
            "may_resend": request.user.has_perm(RESEND.permission),
            "may_resend_hopeless": request.user.has_perm(HOPELESS),
            "why_not": lambda: describe_missing(request, HOPELESS),
            "may_give_up": request.user.has_perm("notifications.discard_emailnotification"),
            "media": self.media,
        }
        return TemplateResponse(request, "admin/notifications/emailnotification/causes.html", context)


@panel(10)
def largest_causes(request: HttpRequest) -> SafeString:
    """Return the first page's panel of the largest groups."""
    if not request.user.has_perm("notifications.view_emailnotification"):
        return SafeString("")
    groups = cause_groups(shops_of(request), limit=ON_FIRST_PAGE + 1)
    context = {"groups": groups[:ON_FIRST_PAGE], "more": len(groups) > ON_FIRST_PAGE}
    return render_to_string("admin/notifications/emailnotification/largest_causes.html", context)
