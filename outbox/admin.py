"""The page of the providers: breakers, buttons that force or test them, and the last day from the sums."""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal, cast

from django.conf import settings
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from notifications.changes.evidence import count_unmatched
from notifications.content.template_files import event_types
from notifications.models import ProviderTest
from notifications.provider_tests import (
    ProviderTestResult,
    act_on_test,
    default_event,
    find_result,
    send_test,
)
from notifications.test_emails import TooManyTestEmails, count_test_email
from outbox.attention import PERMISSION, may_view  # declares tiles, too
from outbox.drain import gate
from outbox.gate.gate import ProviderState
from runtime.audit import record
from runtime.charts.sums import Steps, Sums
from runtime.database.ids import parse_uuid
from runtime.models import AuditRow, Heartbeat
from web.actors import user_actor
from web.admin.acts import record_act
from web.admin.base import pill, show_time
from web.admin.menu import MenuItem, Page
from web.admin.page_limits import limit_page
from web.admin.rights import require_unbound
from web.admin.tiles import RANGES, FrontPage, panel

#: Seconds between two refreshes of the page while a test waits for the webhook.
TEST_REFRESH_SECONDS = 2


def providers_view(site: AdminSite, request: HttpRequest) -> HttpResponse:
    """Show the circuit breakers, and for `?test=ID` a test. For `&part=1`, answer only with the test.

    On POST force a breaker open or closed, release it, or test its provider.
    """
    if not request.user.has_perm(PERMISSION):
        raise PermissionDenied
    require_unbound(request)
    may_force = request.user.has_perm("notifications.force_provider")
    if request.method == "POST":
        if not may_force:
            raise PermissionDenied
        if "test" in request.POST:
            return _send_test(site, request)
        _force(request, request.POST.get("provider", ""), request.POST.get("to", ""))
        return HttpResponseRedirect(request.path)
    test = _describe_test(request) if may_force else {}
    if test and "part" in request.GET:
        return TemplateResponse(request, "admin/outbox/_test.html", test)
    context = {
        **site.each_context(request),
        **test,
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
    may_view=may_view,
    view=providers_view,
)


def _force(request: HttpRequest, provider: str, to: str) -> None:
    if provider not in settings.EMAIL_PROVIDERS or to not in ("", "open", "closed"):
        raise Http404
    word = cast('Literal["open", "closed"] | None', to or None)
    done = f"Forced {provider} {to}." if to else f"The breaker of {provider} is no longer forced."
    # The row is written first, and locks nothing that others wait for: an act without a row would be worse.
    with transaction.atomic():
        record_act(request, kind=AuditRow.Kind.BREAKER, act=done, subject=f"provider {provider}")
        if not gate().force(provider, word, reason=f"by {request.user.get_username()}"):
            transaction.set_rollback(True)
            messages.error(request, "Valkey does not answer, so nothing was forced.")
            return
    messages.info(request, done)


@limit_page("test")
def _send_test(site: AdminSite, request: HttpRequest) -> HttpResponse:
    """Send an e-mail in this request, and show its test."""
    values = {name: request.POST.get(name, "") for name in ("provider", "to", "event")}
    try:
        with count_test_email(request.user):
            test = send_test(**values)
    except (ValueError, TooManyTestEmails) as error:
        messages.error(request, f"Nothing was sent. {error}")
        return HttpResponseRedirect(request.path)
    with transaction.atomic():
        record(act_on_test(test, event=values["event"]), by=user_actor(request))
    return HttpResponseRedirect(f"{request.path}?test={test.id}#test-state")


def _describe_test(request: HttpRequest) -> dict[str, Any]:
    """Return the values of the test in the address, or none."""
    id = parse_uuid(request.GET.get("test", ""))
    test = ProviderTest.objects.filter(id=id).first() if id else None
    if test is None:
        return {}
    result = find_result(test)
    return {
        "test": test,
        "result": result,
        "test_pill": _pill_of(result),
        "sent_at": show_time(test.sent_at),
        "refresh_seconds": TEST_REFRESH_SECONDS,
    }


def _pill_of(result: ProviderTestResult) -> SafeString:
    if not result.is_final:
        return pill("processing", "waiting")
    return pill("sent", "works") if result.works else pill("dead_lettered", "to be corrected")


@panel(60)
def providers(request: HttpRequest) -> SafeString:
    """Return the first page's table of the providers, for users who may view e-mails."""
    if not may_view(request):
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
        words = f"{timezone.localtime(start):%H:%M}: "
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
