"""The objects that send, one for each provider in the registry."""

from __future__ import annotations

from django.utils.module_loading import import_string

from notifications.providers.base import Provider
from notifications.providers.registry import declarations

PROVIDERS: dict[str, Provider] = {
    name: import_string(declared.sending)() for name, declared in declarations().items()
}
