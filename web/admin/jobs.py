"""Start a background job for the rows of a list."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.admin.templatetags.admin_urls import admin_urlname
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseRedirect,
)
from django.urls import reverse
from django.utils.safestring import SafeString

from runtime.database import periods
from runtime.database.clock import read_database_time
from runtime.jobs.start import start_job
from runtime.personal_data import AddressGiven
from web.actors import user_actor


def start_for_list(request: HttpRequest, *, action: str) -> HttpResponse:
    """Start a job for a list's period, and redirect to the job's page. The caller checks permissions."""
    assert request.user.is_authenticated
    typed = {name: request.GET[name] for name in periods.NAMES if request.GET.get(name)}
    frozen = periods.freeze_period(typed, now=read_database_time())
    try:
        job = start_job(action=action, filter=frozen, user=request.user, by=user_actor(request))
    except AddressGiven as error:
        messages.error(request, f"Nothing was changed. {error}")
        return HttpResponseRedirect(request.path)
    return HttpResponseRedirect(reverse(admin_urlname(job._meta, SafeString("change")), args=[job.id]))
