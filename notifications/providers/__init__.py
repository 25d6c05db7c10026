"""The e-mail providers, each a module that turns one e-mail into one `Outcome`.

Called by notifications.delivery, from its sending threads. Anymail is imported in this package alone.
"""

from __future__ import annotations

from notifications.providers.base import Provider
from notifications.providers.sendgrid import SendGrid
from notifications.providers.smtp import Smtp

PROVIDERS: dict[str, Provider] = {provider.name: provider for provider in (SendGrid(), Smtp())}

__all__ = ["PROVIDERS", "Provider"]
