"""The e-mail providers, each a module that turns one e-mail into one `Outcome`.

Called by notifications.delivery, from its sending threads. Anymail is imported in this package alone.
"""

from __future__ import annotations

from notifications.providers.base import Provider
from notifications.providers.resend.sending import Resend
from notifications.providers.sendgrid.sending import SendGrid
from notifications.providers.ses.sending import Ses
from notifications.providers.smtp.sending import Smtp

PROVIDERS: dict[str, Provider] = {
    provider.name: provider for provider in (SendGrid(), Ses(), Resend(), Smtp())
}

__all__ = ["PROVIDERS", "Provider"]
