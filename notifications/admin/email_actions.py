"""The actions on chosen e-mails, such as resend: ask for a confirmation, then start a bulk job.

The job has the ids of ticked rows and of a search's results, or the filter of all others.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from notifications import filters
from notifications.admin.causes import may_not_resend
from notifications.bulk_actions import RESEND, EmailAction, email_actions
from notifications.models import CONTENT, EmailNotification, EmailNotificationQuerySet
from runtime.database.clock import read_database_time
from runtime.database.ids import parse_uuid
from runtime.jobs.actions import rows_of
from runtime.jobs.start import start_job
from runtime.personal_data import AddressGiven, refuse_addresses
from web.actors import user_actor
from web.admin.rights import shops_of
from web.admin.tiles import COUNT_LIMIT

#: The most results of a search that one job changes.
MAX_ROWS = 5_000
#: A bulk job needs one of these parameters; a list without them is too long.
NARROW = ("ids", "status", "failing", "cause")


class ActionsPage(admin.ModelAdmin[EmailNotification]):
    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Return the actions that the user has the permission for."""
        actions: dict[str, Any] = super().get_actions(request)
        for name, action in email_actions().items():
            if request.user.has_perm(action.permission):
                actions[name] = (functools.partial(ActionsPage._act, action=name), name, action.title)
        return actions

    def _act(
        self, request: HttpRequest, queryset: QuerySet[EmailNotification], action: str
    ) -> HttpResponse | None:
        """Ask for a confirmation of the ticked rows, a search's results, or all that match the filter."""
        # A job's filter knows no search.
        others = {name for name, value in request.GET.items() if value} - {*filters.NAMES, "p", "o"}
        if request.POST.get("select_across") != "1" or others:
            ids = queryset.order_by("id").values_list("id", flat=True)[:MAX_ROWS]
            return self._ask(request, queryset, action, params={"ids": ",".join(map(str, ids))})
        if not any(request.GET.get(name) for name in NARROW):
            text = "Filter by status first. An action cannot change all e-mails at once."
            self.message_user(request, text, messages.WARNING)
            return None
        params = filters.freeze(request.GET.dict(), now=read_database_time())
        return self._ask(request, queryset, action, params=params)

    def bulk_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for a confirmation, then start a bulk job for the e-mails of the posted ids or filter."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        name = request.POST.get("action", "")
        if name not in email_actions():
            raise Http404
        action = email_actions()[name]
        if not (self.has_view_permission(request) and request.user.has_perm(action.permission)):
            raise PermissionDenied
        params = _posted(request)
        if not any(params.get(name) for name in NARROW):
            raise Http404
        rows = cast(EmailNotificationQuerySet, shops_of(request).only(rows_of(action, params)))
        if "confirmed" not in request.POST or not self._accept_reason(request, *params.values()):
            return self._ask(request, rows, name, params=params)
        _require_helpful(request, action, params, rows)
        assert request.user.is_authenticated
        job = start_job(
            action=action.name,
            filter=params,
            user=request.user,
            by=user_actor(request),
            reason=request.POST.get("reason", "").strip(),
        )
        return HttpResponseRedirect(reverse("admin:runtime_bulkjob_change", args=[job.id]))

    def _accept_reason(self, request: HttpRequest, *others: str) -> bool:
        """Return whether neither the reason nor the other texts have an address. Tell the user if not."""
        try:
            refuse_addresses(request.POST.get("reason", ""), *others)
        except AddressGiven as error:
            self.message_user(request, f"Nothing was changed. {error}", messages.ERROR)
            return False
        return True

    def _ask(
        self,
        request: HttpRequest,
        queryset: QuerySet[EmailNotification],
        action: str,
        *,
        params: Mapping[str, str],
    ) -> HttpResponse:
        """Ask for a confirmation with the counts by state. The form posts `params` to `bulk_view`."""
        asked: EmailAction = email_actions()[action]
        _require_helpful(request, asked, params, cast(EmailNotificationQuerySet, queryset))
        counts = Counter(queryset.order_by().values_list("status", flat=True)[: COUNT_LIMIT + 1])
        is_single = _is_single(params)
        email = queryset.defer(*CONTENT[1:]).first() if is_single else None
        total, taken = sum(counts.values()), asked.before
        more = total > COUNT_LIMIT
        context: dict[str, Any] = {
            **self.admin_site.each_context(request),
            "title": f"{asked.title}: e-mails",
            "opts": self.opts,
            "action": action,
            "asked": asked,
            "taken": [(_words(status), _count(counts[status], more)) for status in taken if counts[status]],
            "left": [
                (_words(status), _count(n, more))
                for status, n in sorted(counts.items())
                if status not in taken
            ],
            "total": _count(total, more),
            "email": email,
            "to": reverse("admin:notifications_emailnotification_bulk")
            if email is None
            else reverse("admin:notifications_emailnotification_act", args=[email.id]),
            "hidden": [*params.items()],
            "media": self.media,
        }
        return TemplateResponse(request, "admin/notifications/emailnotification/confirm.html", context)


def _is_single(params: Mapping[str, str]) -> bool:
    """Return whether one ticked e-mail is changed, at once and without a job."""
    return parse_uuid(params.get("ids", "")) is not None


def _require_helpful(
    request: HttpRequest, action: EmailAction, params: Mapping[str, str], rows: EmailNotificationQuerySet
) -> None:
    """Raise `PermissionDenied` if a resend of several e-mails cannot help and the user may not do it."""
    if action is RESEND and not _is_single(params) and (why := may_not_resend(request, rows)):
        raise PermissionDenied(why)


def _posted(request: HttpRequest) -> dict[str, str]:
    """Return the posted ids, or else the posted filter. Raise `Http404` if an id is none."""
    if not (posted := request.POST.get("ids")):
        return filters.freeze(request.POST.dict(), now=read_database_time())
    ids = [parse_uuid(id) for id in posted.split(",")[:MAX_ROWS]]
    if None in ids:
        raise Http404
    return {"ids": ",".join(map(str, ids))}


def _words(status: str) -> str:
    return status.replace("_", " ")


def _count(number: int, more: bool) -> str:
    """Return a count as text, with "+" if `more` rows exist than were counted."""
    return f"{min(number, COUNT_LIMIT):,}+" if more else f"{number:,}"
