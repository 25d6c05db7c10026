"""`POST /webhooks/resend`. Brings svix, so it is loaded by its first request."""

from __future__ import annotations

from typing import cast

from anymail.webhooks.resend import ResendTrackingWebhookView
from django.conf import settings

from notifications.providers.webhook import View, Webhook


class Resend(Webhook, ResendTrackingWebhookView):
    """Resend's webhooks, signed by Svix, whose library checks the time too (five minutes)."""

    provider = "resend"


def view() -> View:
    """This function will make the view with the secret that the settings have now."""
    return cast(View, Resend.as_view(signing_secret=settings.RESEND_WEBHOOK_SECRET or None))
