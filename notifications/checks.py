"""Deploy checks of the e-mails and of the providers' webhooks."""

from __future__ import annotations

from email.utils import parseaddr
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Tags, Warning, register

from notifications.content.profiles import EXAMPLE_SHOP
from notifications.providers.registry import declarations
from runtime.conditions import PRODUCTION

#: Domains that nobody owns (RFC 2606). No provider verifies a sender in them.
_EXAMPLE_DOMAINS = ("example.com", "example.net", "example.org")


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
            hint=f"Set {declared.webhook_key}; docs/guides/providers.md says where it comes from.",
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


@register(Tags.security, PRODUCTION, deploy=True)
def check_examples(**_: Any) -> list[CheckMessage]:
    """Warn of each setting that customers read and that still has its example."""
    domains = {
        "DEFAULT_FROM_EMAIL": parseaddr(settings.DEFAULT_FROM_EMAIL)[1].rpartition("@")[2],
        "SHOP_URL": urlsplit(settings.SHOP_URL).hostname or "",
    }
    names = [name for name, domain in domains.items() if _is_example(domain)]
    names += [
        name for name in ("SHOP_NAME", "SHOP_ADDRESS") if getattr(settings, name).startswith(EXAMPLE_SHOP)
    ]
    return [
        Warning(
            f"E-mails to customers show the example of {name}: {getattr(settings, name)}.",
            hint=f"Set {name}; docs/reference/configuration.md describes it.",
            id="notifications.W003",
        )
        for name in names
    ]


def _is_example(domain: str) -> bool:
    return f".{domain.lower()}".endswith(tuple(f".{example}" for example in _EXAMPLE_DOMAINS))
