"""Deploy checks of the providers' webhooks. Loaded by the app's config."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Tags, Warning, register

from notifications.providers.registry import declarations


@register(Tags.security, deploy=True)
def check_webhook_keys(**_: Any) -> list[CheckMessage]:
    """Warn of each configured provider whose webhook has no key: it takes no events, or anybody's."""
    unsigned = settings.DEBUG or settings.WEBHOOKS_UNSIGNED
    effect = (
        "takes anybody's events, which make e-mails sent and suppress addresses"
        if unsigned
        else "refuses all events, so a lost answer is not cleared up and bounces stay unknown"
    )
    return [
        Warning(
            f"/webhooks/{name} {effect}.",
            hint=f"Set {declared.webhook_key}; docs/providers.md says where it comes from.",
            id="notifications.W001",
        )
        for name, declared in declarations().items()
        if declared.webhook
        and name in settings.EMAIL_PROVIDERS
        and not getattr(settings, declared.webhook_key)
    ]


@register(Tags.security, deploy=True)
def check_unsigned(**_: Any) -> list[CheckMessage]:
    """Warn of WEBHOOKS_UNSIGNED, which is for local experiments."""
    if not settings.WEBHOOKS_UNSIGNED:
        return []
    return [
        Warning(
            "WEBHOOKS_UNSIGNED is on, so anybody who knows a notification's id can mark it as sent.",
            hint="Turn it off, and set the key of each provider's webhook.",
            id="notifications.W002",
        )
    ]
