"""The providers' page: each one's circuit breaker, and how to override it."""

from __future__ import annotations

from typing import Any, Literal, cast

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString

from notifications.admin.provider_history import with_history
from notifications.delivery.process import gate
from notifications.models import EmailNotification
from outbox.admin.base import ago
from outbox.admin.front import panel
from outbox.models import Heartbeat


class ProvidersPage(admin.ModelAdmin[EmailNotification]):
    """A mixin of the e-mails' admin, which gives the page its address."""

    def providers_view(self, request: HttpRequest) -> HttpResponse:
        """Show the circuit breakers; on POST force one open or closed, or end that."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        may_force = request.user.has_perm("notifications.force_provider")
        if request.method == "POST":
            if not may_force:
                raise PermissionDenied
            self._force(request, request.POST.get("provider", ""), request.POST.get("to", ""))
            return HttpResponseRedirect(request.path)
        context = {
            **self.admin_site.each_context(request),
            "title": "Providers",
            "opts": self.opts,
            "providers": with_history(request, provider_lines()),
            "shared": gate().is_shared,
            "may_force": may_force,
            "rate": settings.EMAIL_RATE_LIMIT,
            "media": self.media,
        }
        return TemplateResponse(request, "admin/notifications/emailnotification/providers.html", context)

    def _force(self, request: HttpRequest, provider: str, to: str) -> None:
        if provider not in settings.EMAIL_PROVIDERS or to not in ("", "open", "closed"):
            raise Http404
        word = cast('Literal["open", "closed"] | None', to or None)
        if not gate().force(provider, word, reason=f"by {request.user.get_username()}"):
            self.message_user(request, "Valkey does not answer, so nothing was forced.", messages.ERROR)
            return
        done = f"Forced {provider} {to}." if to else f"{provider} decides itself again."
        LogEntry.objects.create(
            user_id=request.user.pk or 0,
            content_type=ContentType.objects.get_for_model(EmailNotification),
            object_repr=f"provider {provider}",
            action_flag=CHANGE,
            change_message=done,
        )
        self.message_user(request, done)


@panel(60)
def providers(request: HttpRequest) -> SafeString:
    """Return the first page's table of the providers, for those who may see e-mails."""
    if not request.user.has_perm("notifications.view_emailnotification"):
        return SafeString("")
    context = {"providers": with_history(request, [{"view": view} for view in gate().views()])}
    return render_to_string("admin/notifications/_providers.html", context, request=request)


def provider_lines() -> list[dict[str, Any]]:
    """Return each provider's circuit breaker and when its events last arrived."""
    beats = dict(Heartbeat.objects.filter(name__startswith="webhook:").values_list("name", "beat_at"))
    return [
        {
            "view": view,
            "changed": "–" if view.changed_ago is None else f"{view.changed_ago:.0f} s ago",
            "events": ago(beats.get(f"webhook:{view.provider}")),
        }
        for view in gate().views()
    ]
