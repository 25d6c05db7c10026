"""The first page's banner about settings that are unsafe in production."""

from __future__ import annotations

from django.conf import settings
from django.core.checks import run_checks
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from runtime.conditions import PRODUCTION
from web.admin.tiles import panel


@panel(2)
def unfit_settings(request: HttpRequest) -> SafeString:
    """Return a banner for operators with the findings of `check --deploy` that have the tag `production`.

    Return an empty string if HTTPS=off: a local run has example values and sends e-mails to nobody.
    """
    if not settings.HTTPS or not request.user.has_perm("runtime.view_heartbeat"):
        return SafeString("")
    warnings = run_checks(tags=[PRODUCTION], include_deployment_checks=True)
    if not warnings:
        return SafeString("")
    return render_to_string("admin/operations/_unfit_settings.html", {"warnings": warnings}, request=request)
