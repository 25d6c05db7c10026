"""Pauses in the admin: the banner of the first page, and the page that pauses and resumes."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString

from operations import pauses
from runtime.models import Pause
from runtime.personal_data import AddressGiven, refuse_addresses
from web.actors import user_actor
from web.admin.base import TriageAdmin, show_time
from web.admin.menu import MenuItem
from web.admin.tiles import panel

SET = "runtime.set_pause"


@admin.register(Pause)
class PauseAdmin(TriageAdmin[Pause]):
    """Shows a line for each part, and a form to users who may pause."""

    menu = MenuItem(70, "Pauses")
    ordering = ["part"]

    def has_view_permission(self, request: HttpRequest, obj: Pause | None = None) -> bool:
        return request.user.has_perm("runtime.view_pause") or request.user.has_perm(SET)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show what is paused. On POST, ask whether to pause the selected parts, pause or resume them."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method == "POST":
            if not request.user.has_perm(SET):
                raise PermissionDenied
            if self._is_complete(request):
                if request.POST.get("to") == "pause" and "confirmed" not in request.POST:
                    return self._ask(request)
                self._change(request)
            return HttpResponseRedirect(request.path)
        context = {
            **self.admin_site.each_context(request),
            "title": "Pauses",
            "opts": self.opts,
            "parts": part_lines(),
            "may_set": request.user.has_perm(SET),
            "media": self.media,
        }
        return TemplateResponse(request, "admin/runtime/pause/pauses.html", context)

    def _is_complete(self, request: HttpRequest) -> bool:
        """Return whether the request says what to change and, for a pause, why. Otherwise tell the user."""
        problem = ""
        if not _parts(request):
            problem = "Choose at least one part."
        elif request.POST.get("to") == "pause" and not _reason(request):
            problem = "Say why. Others read the reason next to the pause."
        try:
            refuse_addresses(_reason(request))
        except AddressGiven as error:
            problem = str(error)
        if problem:
            self.message_user(request, f"Nothing was changed. {problem}", messages.ERROR)
        return not problem

    def _ask(self, request: HttpRequest) -> HttpResponse:
        """Show what a pause stops and who pays for it, and a form that confirms it."""
        context = {
            **self.admin_site.each_context(request),
            "title": "Pause",
            "opts": self.opts,
            "stops": [(part, pauses.COSTS[Pause.Part(part)]) for part in _parts(request)],
            "reason": _reason(request),
            "media": self.media,
        }
        return TemplateResponse(request, "admin/runtime/pause/confirm.html", context)

    def _change(self, request: HttpRequest) -> None:
        parts, reason = _parts(request), _reason(request)
        by = user_actor(request)
        if request.POST.get("to") == "pause":
            changed, done = pauses.pause(parts=parts, reason=reason, by=by), "Paused"
        else:
            done = "Resumed"
            try:
                changed = pauses.resume(parts=parts, by=by)
            except pauses.NotReconciled as error:
                self.message_user(request, f"Nothing was resumed: {error}.", messages.ERROR)
                return
        text = f"{done}: {', '.join(changed)}." if changed else "Nothing was changed."
        self.message_user(request, text, messages.SUCCESS if changed else messages.WARNING)


def _parts(request: HttpRequest) -> list[str]:
    return [part for part in request.POST.getlist("part") if part in Pause.Part.values]


def _reason(request: HttpRequest) -> str:
    return request.POST.get("reason", "").strip()[:200]


@panel(1)
def paused(request: HttpRequest) -> SafeString:
    """Return the first page's banner while a part is paused. All users see it."""
    lines = [line for line in part_lines() if line["pause"]]
    if not lines:
        return SafeString("")
    may_see = request.user.has_perm("runtime.view_pause") or request.user.has_perm(SET)
    context = {"paused": lines, "may_see": may_see}
    return render_to_string("admin/operations/_paused.html", context, request=request)


def part_lines() -> list[dict[str, Any]]:
    """Return each part with its pause, or with None if it is not paused."""
    rows = {row.part: row for row in Pause.objects.all()}
    return [
        {
            "part": part.value,
            "work": pauses.WORK[part],
            "pause": rows.get(part.value),
            "since": show_time(rows[part.value].paused_at) if part.value in rows else "",
        }
        for part in Pause.Part
    ]
