"""The objects that send, one for each provider in the registry."""

from __future__ import annotations

from django.conf import settings
from django.utils.module_loading import import_string

from notifications.providers.base import Provider
from notifications.providers.registry import declarations

PROVIDERS: dict[str, Provider] = {
    name: import_string(declared.provider)() for name, declared in declarations().items()
}


def api_url(name: str) -> str:
    """Return the address of a provider's API from its settings, or "" if none has it."""
    declared = declarations()[name]
    for setting in declared.settings:
        if setting.name == declared.url_setting and declared.sandbox:
            value = settings.ANYMAIL[setting.anymail] if setting.anymail else getattr(settings, setting.name)
            return str(value or "")
    return ""
