"""What `manage.py check --deploy` says about the providers' webhooks. Loaded by the app's config."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Tags, Warning, register

_KEYS = {
    "sendgrid": "SENDGRID_WEBHOOK_VERIFICATION_KEY",
    "ses": "WEBHOOK_BASIC_AUTH",
    "resend": "RESEND_WEBHOOK_SECRET",
}


@register(Tags.security, deploy=True)
def check_webhook_keys(**_: Any) -> list[CheckMessage]:
    """This function will warn of a configured provider whose webhook anybody could post to."""
    return [
        Warning(
            f"/webhooks/{provider} takes anybody's events, which make e-mails sent and suppress addresses.",
            hint=f"Set {key}; docs/providers.md says where it comes from.",
            id="notifications.W001",
        )
        for provider, key in _KEYS.items()
        if provider in settings.EMAIL_PROVIDERS and not getattr(settings, key)
    ]
