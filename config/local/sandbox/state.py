"""The state that each request reads and changes: the mails, the faults, the dialects and the webhooks."""

from __future__ import annotations

from typing import Any

from django.utils.module_loading import import_string

from config.local.sandbox.faults import Fault, Faults
from config.local.sandbox.mails import Mail, Mailbox
from config.local.sandbox.webhooks import Webhooks, WebhookSettings
from notifications.providers.dialect import Dialect
from notifications.providers.registry import declarations


class State:
    """The state of the providers that have a dialect.

    `Sandbox` extends `set_fault` and `heal`, because the fault `refuse` closes its port.
    """

    def __init__(
        self,
        *,
        api_key: str | None,
        latency: float,
        webhooks: WebhookSettings | None,
        max_mails: int,
        max_bytes: int,
    ) -> None:
        self.api_key, self.latency = api_key, latency
        self.mailbox = Mailbox(max_mails=max_mails, max_bytes=max_bytes)
        self.faults = Faults()
        self.dialects: dict[str, Dialect] = {
            name: import_string(declared.dialect)()
            for name, declared in declarations().items()
            if declared.dialect
        }
        self.webhooks = Webhooks(settings=webhooks, dialects=self.dialects)

    def set_fault(self, fault: Fault) -> None:
        """Let requests meet a fault from now on."""
        self.faults.add(fault)

    def heal(self) -> None:
        """End every fault."""
        self.faults.heal()

    def stats(self) -> dict[str, Any]:
        """Return the totals, as `GET /control/stats` does."""
        return {**self.mailbox.stats(), "webhooks": self.webhooks.stats()}

    def take(self, mail: Mail) -> None:
        """Keep a mail that was accepted, and let its events follow."""
        self.mailbox.keep(mail=mail)
        self.webhooks.mail_accepted(mail=mail)
