"""The page of the providers: breakers, buttons that force or try them, and the last day from the sums."""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal, cast

from django.conf import settings
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import AbstractUser
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from notifications.changes.evidence import count_unmatched
from notifications.content.template_files import event_types
from notifications.models import EmailNotification
from notifications.trials import default_event, start_trial
from outbox.attention import PERMISSION  # declares tiles, too
from outbox.drain import gate
from outbox.gate.gate import ProviderState
from runtime.charts.sums import Steps, Sums
from runtime.models import BulkJob, Heartbeat
from web.admin.acts import record_act
from web.admin.base import show_time
from web.admin.menu import MenuItem, Page
from web.admin.tiles import RANGES, FrontPage, panel


def providers_view(site: AdminSite, request: HttpRequest) -> HttpResponse:
    """Show the circuit breakers. On POST force one open or closed, release it, or try its provider."""
    if not request.user.has_perm(PERMISSION):
        raise PermissionDenied
    may_force = request.user.has_perm("notifications.force_provider")
    if request.method == "POST":
        if not may_force:
            raise PermissionDenied
        if "try" in request.POST:
            return _try(request)
        _force(request, request.POST.get("provider", ""), request.POST.get("to", ""))
        return HttpResponseRedirect(request.path)
    context = {
        **site.each_context(request),
        "title": "Providers",
        "providers": _with_history(request, provider_lines()),
        "shared": gate().is_shared,
        "may_force": may_force,
        "rate": settings.EMAIL_RATE_LIMIT,
        "events": sorted(event_types()),
        "default_event": default_event(),
        "address": getattr(request.user, "email", ""),
    }
    return TemplateResponse(request, "admin/outbox/providers.html", context)


#: `operations.site` shows it.
PAGE = Page(
    route="providers/",
    menu=MenuItem(50, "Providers", "providers"),
    permission=PERMISSION,
    view=providers_view,
)


def _force(request: HttpRequest, provider: str, to: str) -> None:
    if provider not in settings.EMAIL_PROVIDERS or to not in ("", "open", "closed"):
        raise Http404
    word = cast('Literal["open", "closed"] | None', to or None)
    if not gate().force(provider, word, reason=f"by {request.user.get_username()}"):
        messages.error(request, "Valkey does not answer, so nothing was forced.")
        return
    done = f"Forced {provider} {to}." if to else f"The breaker of {provider} is no longer forced."
    LogEntry.objects.create(
        user_id=request.user.pk or 0,
        content_type=ContentType.objects.get_for_model(EmailNotification),
        object_repr=f"provider {provider}",
        action_flag=CHANGE,
        change_message=done,
    )
    messages.info(request, done)


def _try(request: HttpRequest) -> HttpResponse:
    """Start the job that tries a provider, and show its page."""
    values = {name: request.POST.get(name, "") for name in ("provider", "to", "event")}
    try:
        job = start_trial(user=cast("AbstractUser", request.user), **values)
    except ValueError as error:
        messages.error(request, f"Nothing was sent. {error}")
        return HttpResponseRedirect(request.path)
    record_act(
        request,
        model=BulkJob,
        id=job.id,
        subject=f"provider {values['provider']}",
        action="Started a trial.",
        event=values["event"],
        to=f"hash:{job.filter['person']}",
    )
    return HttpResponseRedirect(reverse("admin:runtime_bulkjob_change", args=[job.id]))


@panel(60)
def providers(request: HttpRequest) -> SafeString:
    """Return the first page's table of the providers, for users who may view e-mails."""
    if not request.user.has_perm(PERMISSION):
        return SafeString("")
    context = {"providers": _with_history(request, [{"view": view} for view in gate().read_providers()])}
    return render_to_string("admin/outbox/_providers.html", context, request=request)


def _time_of_change(view: ProviderState) -> SafeString | str:
    seconds = view.changed_ago_seconds
    return show_time(None if seconds is None else timezone.now() - dt.timedelta(seconds=seconds))


def provider_lines() -> list[dict[str, Any]]:
    """Return each provider's circuit breaker, the time of its last webhook event, and the unmatched ones."""
    unmatched = count_unmatched()
    beats = dict(Heartbeat.objects.filter(name__startswith="webhook:").values_list("name", "beat_at"))
    return [
        {
            "view": view,
            "changed": _time_of_change(view),
            "events": show_time(beats.get(f"webhook:{view.provider}")),
            "unmatched": unmatched.get(view.provider, 0),
        }
        for view in gate().read_providers()
    ]


def _with_history(request: HttpRequest, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the last day to each provider: the strip, and the numbers of sent e-mails and failed attempts."""
    steps = FrontPage.of(request).steps(RANGES["day"])
    day = Sums.total(sums for _, sums in steps if sums is not None)
    return [
        line
        | {
            "strip": _strip(line["view"].provider, steps),
            "sent": day.count(f"sent:{line['view'].provider}"),
            "failed": day.count(f"failed:{line['view'].provider}"),
        }
        for line in lines
    ]


def _strip(provider: str, steps: Steps) -> SafeString:
    """Draw the last day: red while the breaker was open, orange while some attempts failed."""
    cells = []
    for number, (start, sums) in enumerate(steps):
        words = f"{start:%H:%M}: "
        if sums is None or f"open:{provider}" not in sums.samples:
            kind, said = "gap", "not recorded"
        elif minutes := sums.samples[f"open:{provider}"]:
            kind, said = "open", f"breaker open, {minutes} min"
        elif failed := sums.count(f"failed:{provider}"):
            kind, said = "some", f"{failed} failed"
        else:
            kind, said = "fine", f"{sums.count(f'sent:{provider}')} sent"
        cells.append((number * 10, kind, words + said))
    open_minutes = sum(sums.samples.get(f"open:{provider}", 0) for _, sums in steps if sums is not None)
    return format_html(
        '<svg class="strip" viewBox="0 0 {} 20" preserveAspectRatio="none" role="img"'
        ' aria-label="The last day of {}: breaker open for {} minutes">{}</svg>',
        len(steps) * 10,
        provider,
        open_minutes,
        format_html_join("", '<rect x="{}" class="{}" width="9" height="20"><title>{}</title></rect>', cells),
    )
