"""The actions on chosen e-mails, such as resend: ask for a confirmation, then change and log each e-mail.

The request itself changes ticked rows and the results of a search. A bulk job changes all e-mails that match
a filter, or all of one cause.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from notifications import filters
from notifications.bulk_actions import GIVE_UP, RESEND
from notifications.models import EmailNotification
from outbox import bulk
from outbox.admin.front import COUNT_LIMIT
from outbox.database.clock import read_database_time
from outbox.delivery.rows import by_hand
from outbox.privacy import AddressGiven, refuse_addresses

#: The most rows of a search's results that one request changes.
MAX_ROWS = 5_000
CHUNK = 500
#: The message's verb after each action. Their bulk actions are called `notifications.<action>`.
DONE = {
    "resend": "Resent",
    "give_up": "Given up",
    "mark_sent": "Marked as sent",
    "render_again": "Rendered again",
}
#: The states that each action changes. It leaves other e-mails unchanged.
TAKEN = {
    "resend": by_hand.RESEND.states,
    "give_up": by_hand.DISCARD.states,
    "mark_sent": by_hand.MARK_SENT.states,
    "render_again": by_hand.DISCARD.states,
}
#: A bulk job needs one of these parameters; a list without them is too long.
NARROW = ("status", "failing", "cause")


class ActionsPage(admin.ModelAdmin[EmailNotification]):
    actions = ["resend", "give_up", "mark_sent", "render_again"]

    def has_resend_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(RESEND.permission)

    def has_discard_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(GIVE_UP.permission)

    @admin.action(description="Resend", permissions=["resend"])
    def resend(self, request: HttpRequest, queryset: QuerySet[EmailNotification]) -> HttpResponse | None:
        return self._act(request, queryset, "resend")

    @admin.action(description="Give up", permissions=["discard"])
    def give_up(self, request: HttpRequest, queryset: QuerySet[EmailNotification]) -> HttpResponse | None:
        return self._act(request, queryset, "give_up")

    @admin.action(description="Mark as sent", permissions=["discard"])
    def mark_sent(self, request: HttpRequest, queryset: QuerySet[EmailNotification]) -> HttpResponse | None:
        return self._act(request, queryset, "mark_sent")

    @admin.action(description="Render again", permissions=["resend"])
    def render_again(
        self, request: HttpRequest, queryset: QuerySet[EmailNotification]
    ) -> HttpResponse | None:
        return self._act(request, queryset, "render_again")

    def _act(
        self, request: HttpRequest, queryset: QuerySet[EmailNotification], action: str
    ) -> HttpResponse | None:
        """Change the ticked rows or the results of a search. Send everything else to `bulk_view`."""
        across = request.POST.get("select_across") == "1"
        if across and not request.GET.get("q"):
            if not any(request.GET.get(name) for name in NARROW):
                text = "Filter by status first. An action cannot change all e-mails at once."
                self.message_user(request, text, messages.WARNING)
                return None
            params = filters.freeze(request.GET.dict(), now=read_database_time())
            return self._ask(request, queryset, action, to=_bulk_url(), hidden=[*params.items()])
        if "confirmed" not in request.POST or not self._accept_reason(request):
            ticked = [(ACTION_CHECKBOX_NAME, id) for id in request.POST.getlist(ACTION_CHECKBOX_NAME)[:1000]]
            return self._ask(
                request, queryset, action, hidden=[*ticked, ("select_across", "1" if across else "0")]
            )
        self._change(request, queryset, action)
        return None

    def bulk_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for a confirmation, then start a bulk job for all e-mails that match the posted filter."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        name = request.POST.get("action", "")
        if name not in DONE:
            raise Http404
        action = _bulk_action(name)
        if not (self.has_view_permission(request) and request.user.has_perm(action.permission)):
            raise PermissionDenied
        params = filters.freeze(request.POST.dict(), now=read_database_time())
        if not any(params.get(one) for one in NARROW):
            raise Http404
        if "confirmed" not in request.POST or not self._accept_reason(request, *params.values()):
            rows = filters.narrow(EmailNotification.objects.all(), params)
            return self._ask(request, rows, name, to=_bulk_url(), hidden=[*params.items()])
        assert request.user.is_authenticated
        job = bulk.start_job(
            action=action.name,
            filter=params,
            user=request.user,
            reason=request.POST.get("reason", "").strip(),
        )
        return HttpResponseRedirect(reverse("admin:outbox_bulkjob_change", args=[job.id]))

    def _accept_reason(self, request: HttpRequest, *others: str) -> bool:
        """Return whether neither the reason nor the other texts have an address. Tell the user if not."""
        try:
            refuse_addresses(request.POST.get("reason", ""), *others)
        except AddressGiven as error:
            self.message_user(request, f"Nothing was changed. {error}", messages.ERROR)
            return False
        return True

    def _change(self, request: HttpRequest, queryset: QuerySet[EmailNotification], action: str) -> None:
        """Change up to MAX_ROWS rows, CHUNK in each transaction. Report changes and refusals."""
        reason = request.POST.get("reason", "").strip()[:200]
        ids = list(queryset.order_by("id").values_list("id", flat=True)[:MAX_ROWS])
        changed, refused = 0, Counter[str]()
        kind = ContentType.objects.get_for_model(EmailNotification)
        for start in range(0, len(ids), CHUNK):
            with transaction.atomic():
                result = _bulk_action(action).change(ids[start : start + CHUNK])
                LogEntry.objects.bulk_create(
                    LogEntry(
                        user_id=request.user.pk or 0,
                        content_type=kind,
                        object_id=str(id),
                        object_repr=f"E-mail {id}",
                        action_flag=CHANGE,
                        change_message=f"{line} {reason}".rstrip(),
                    )
                    for id, line in result.lines
                )
            changed += len(result.lines)
            refused += result.refusals
        text = f"{DONE[action]}: {changed}."
        if refused:
            text += (
                " Left alone: " + "; ".join(f"{count} ({why})" for why, count in refused.most_common()) + "."
            )
        self.message_user(request, text, messages.SUCCESS if changed else messages.WARNING)

    def _ask(
        self,
        request: HttpRequest,
        queryset: QuerySet[EmailNotification],
        action: str,
        *,
        hidden: list[tuple[str, str]],
        to: str = "",
    ) -> HttpResponse:
        """Ask for a confirmation with the counts by state. The form posts to `to` or to this page."""
        counts = Counter(queryset.order_by().values_list("status", flat=True)[: COUNT_LIMIT + 1])
        total, taken = sum(counts.values()), TAKEN[action]
        more = total > COUNT_LIMIT
        context: dict[str, Any] = {
            **self.admin_site.each_context(request),
            "title": f"{_bulk_action(action).title}: e-mails",
            "opts": self.opts,
            "action": action,
            "taken": [(_words(status), _count(counts[status], more)) for status in taken if counts[status]],
            "left": [
                (_words(status), _count(n, more))
                for status, n in sorted(counts.items())
                if status not in taken
            ],
            "total": _count(total, more),
            "to": to,
            "most": None if to else MAX_ROWS,
            "hidden": hidden,
            "media": self.media,
        }
        return TemplateResponse(request, "admin/notifications/emailnotification/confirm.html", context)


def _bulk_action(name: str) -> bulk.BulkAction:
    return bulk.ACTIONS[f"notifications.{name}"]


def _bulk_url() -> str:
    return reverse("admin:notifications_emailnotification_bulk")


def _words(status: str) -> str:
    return status.replace("_", " ")


def _count(number: int, more: bool) -> str:
    """Return a count as text, with "+" if `more` rows exist than were counted."""
    return f"{min(number, COUNT_LIMIT):,}+" if more else f"{number:,}"
