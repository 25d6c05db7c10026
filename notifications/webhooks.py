"""The providers' webhooks: `POST /webhooks/<provider>`. base.py says what their events mean.

config.urls includes `urlpatterns`; a provider's module is loaded by the first request to its address.
"""

from __future__ import annotations

import functools
import importlib

from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

PROVIDERS = ("sendgrid", "ses", "resend")


@csrf_exempt
def webhook(request: HttpRequest, provider: str) -> HttpResponse:
    """This function will hand a request to its provider's view."""
    view = _view(provider)
    answer: HttpResponse = view(request)
    return answer


@functools.cache
def _view(provider: str):  # type: ignore[no-untyped-def]
    return importlib.import_module(f"notifications.providers.{provider}.webhook").view()


urlpatterns = [path(provider, webhook, {"provider": provider}) for provider in PROVIDERS]
