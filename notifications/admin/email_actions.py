"""Resend and give up: ask for a confirmation, change the chosen e-mails, log each change."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from notifications import services
from notifications.admin.email_list import COUNT_LIMIT
from notifications.models import EmailNotification
from outbox.delivery.changes import Change, Refusal
from outbox.delivery.outcomes import Status

#: One confirmation changes at most this many rows, in transactions of CHUNK rows.
MAX_ROWS = 50_000
CHUNK = 500
Service = Callable[..., tuple[list[Change], list[Refusal]]]


class ActionsPage(admin.ModelAdmin[EmailNotification]):
    actions = ["resend", "give_up"]

    def has_resend_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("notifications.resend_emailnotification")

    def has_discard_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("notifications.discard_emailnotification")

    @admin.action(description="Resend", permissions=["resend"])
    def resend(self, request: HttpRequest, queryset: QuerySet[EmailNotification]) -> HttpResponse | None:
        return self._change(request, queryset, "resend", services.resend, "Resent")

    @admin.action(description="Give up", permissions=["discard"])
    def give_up(self, request: HttpRequest, queryset: QuerySet[EmailNotification]) -> HttpResponse | None:
        return self._change(request, queryset, "give_up", services.give_up, "Given up")

    def _change(
        self,
        request: HttpRequest,
        queryset: QuerySet[EmailNotification],
        action: str,
        service: Service,
        done: str,
    ) -> HttpResponse | None:
        if "confirmed" not in request.POST:
            return self._ask(request, queryset, action)
        reason = request.POST.get("reason", "").strip()[:200]
        ids = list(queryset.order_by("id").values_list("id", flat=True)[:MAX_ROWS])
        changed, refused = 0, Counter[str]()
        for start in range(0, len(ids), CHUNK):
            with transaction.atomic():
                changes, refusals = service(ids=ids[start : start + CHUNK])
                self._log(
                    request,
                    [(change.row.pk, f"{done} (was {change.was}). {reason}".rstrip()) for change in changes],
                )
            changed += len(changes)
            refused.update(refusal.reason for refusal in refusals)
        level = messages.SUCCESS if changed else messages.WARNING
        text = f"{done}: {changed}."
        if refused:
            text += (
                " Left alone: " + "; ".join(f"{count} ({why})" for why, count in refused.most_common()) + "."
            )
        self.message_user(request, text, level)
        return None

    def _log(self, request: HttpRequest, lines: Iterable[tuple[uuid.UUID, str]]) -> None:
        kind = ContentType.objects.get_for_model(EmailNotification)
        LogEntry.objects.bulk_create(
            LogEntry(
                user_id=request.user.pk or 0,
                content_type=kind,
                object_id=str(id),
                object_repr=f"E-mail {id}",
                action_flag=CHANGE,
                change_message=message,
            )
            for id, message in lines
        )

    def _ask(self, request: HttpRequest, queryset: QuerySet[EmailNotification], action: str) -> HttpResponse:
        counts = Counter(queryset.order_by().values_list("status", flat=True)[: COUNT_LIMIT + 1])
        taken = (
            (Status.DEAD_LETTERED, Status.DISCARDED, Status.SUPPRESSED, Status.FAILED)
            if action == "resend"
            else (Status.DEAD_LETTERED,)
        )
        total = sum(counts.values())
        context = {
            **self.admin_site.each_context(request),
            "title": "Resend e-mails" if action == "resend" else "Give up e-mails",
            "opts": self.opts,
            "action": action,
            "taken": [(status.replace("_", " "), counts[status]) for status in taken if counts[status]],
            "left": [
                (status.replace("_", " "), n) for status, n in sorted(counts.items()) if status not in taken
            ],
            "total": f"{COUNT_LIMIT:,}+" if total > COUNT_LIMIT else total,
            "most": MAX_ROWS,
            "selected": request.POST.getlist(ACTION_CHECKBOX_NAME)[:1000],
            "checkbox": ACTION_CHECKBOX_NAME,
            "across": request.POST.get("select_across", "0"),
            "media": self.media,
        }
        return TemplateResponse(request, "admin/notifications/emailnotification/confirm.html", context)
