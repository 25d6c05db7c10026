"""The state that each request reads and changes: the mails, the faults, the dialects and the webhooks."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any

from django.utils.module_loading import import_string

from local.sandbox.faults import Fault, Faults
from local.sandbox.mails import Mail, Mailbox
from local.sandbox.webhooks import Webhooks
from notifications.providers.dialect import Dialect
from notifications.providers.registry import declarations


@dataclass(kw_only=True, eq=False)
class SandboxState:
    """The state of the providers that have a dialect.

    port     0 takes a free port
    api_key  the only API key that is accepted; None accepts any key
    tls      the context with the server's certificate; None serves plain HTTP
    latency_seconds  before each answer to a send

    `webhooks.settings` chooses the posted events and their URL; None posts none. The fault `refuse` closes
    the port of `Sandbox`, which therefore extends `set_fault` and `heal`.
    """

    port: int = 0
    api_key: str | None = None
    tls: ssl.SSLContext | None = None
    max_mails: int = 20_000
    max_bytes: int = 128 * 1024 * 1024
    latency_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.mailbox = Mailbox(max_mails=self.max_mails, max_bytes=self.max_bytes)
        self.faults = Faults()
        self.dialects: dict[str, Dialect] = {
            name: import_string(declared.dialect)()
            for name, declared in declarations().items()
            if declared.dialect
        }
        self.webhooks = Webhooks(dialects=self.dialects)

    def set_fault(self, fault: Fault) -> None:
        """Let requests meet a fault from now on."""
        self.faults.add(fault)

    def heal(self) -> None:
        self.faults.heal()

    def stats(self) -> dict[str, Any]:
        """Return the totals, as `GET /control/stats` does."""
        return {**self.mailbox.stats(), "webhooks": self.webhooks.stats()}

    def store_mail(self, mail: Mail) -> None:
        """Keep an accepted mail, and schedule its events."""
        self.mailbox.keep(mail=mail)
        self.webhooks.mail_accepted(mail=mail)
