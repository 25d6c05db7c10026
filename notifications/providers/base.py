"""The base class of the providers: it builds the message and keeps one open connection for each thread."""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from email.utils import parseaddr
from types import MappingProxyType
from typing import Any, Protocol

from django.core.mail import EmailMultiAlternatives, get_connection

from notifications.providers.causes import judge_refusal
from notifications.providers.headers import formatted_address
from notifications.providers.registry import declarations
from notifications.states.outcomes import Outcome, Verdict
from runtime.texts import break_links, one_line

#: Open a new connection after so many idle seconds. The server may be about to close the old one, and a reset
#: at that moment looks like a reset after it took the mail.
IDLE_SECONDS = 15.0
#: By provider, the options of a profile's account.
Account = Mapping[str, Mapping[str, str]]
NO_ACCOUNT: Account = MappingProxyType({})


class OutgoingEmail(Protocol):
    """The source of a message: a claim, or an `EmailNotification` that is not stored."""

    id: uuid.UUID
    order_id: uuid.UUID
    event_type: str
    recipient_email: str
    to_name: str
    subject: str
    body: str
    body_text: str
    from_email: str
    reply_to: str


def always() -> bool:
    return True


class Provider(ABC):
    """A provider. Many threads may call `send` at once: each has its own connection."""

    name: str
    backend: str
    #: Whether an idempotency key keeps a repeated send of the same notification from making a second mail.
    is_idempotent: bool = False

    def __init__(self) -> None:
        self._local = threading.local()

    def send(
        self,
        email: OutgoingEmail,
        *,
        account: Account = NO_ACCOUNT,
        may_continue: Callable[[], bool] = always,
    ) -> Outcome:
        """Hand `email` to the provider and return the outcome. Does not raise.

        If a kept connection turns out to have ended, send over a new one at once: the end has nothing to do
        with `email`. Once `may_continue` returns false, begin nothing more, and return `RETURNED` if the
        provider certainly does not have the message.
        """
        kept = getattr(self._local, "connection", None)
        try:
            connection = self._connection()
        except Exception as error:  # noqa: BLE001 - each provider knows its own errors
            return self.not_connected(error)
        try:
            message = build_message(email, connection)
            self.prepare(message, email)
            self._use_account(message, account)
            self.deliver(connection, message, may_continue)
        except Exception as error:  # noqa: BLE001
            has_ended = connection is kept and self.has_ended(error)
            outcome = self.refused(error)
            self.close()
            if not has_ended:
                return outcome
            if not may_continue():
                return Outcome(Verdict.RETURNED, self.name)
            return self.send(email, account=account, may_continue=may_continue)
        self._local.used_at = time.monotonic()
        return self.accepted(message)

    def close(self) -> None:
        """Close the calling thread's connection, if it has one."""
        connection, self._local.connection = getattr(self._local, "connection", None), None
        if connection is not None:
            connection.close()

    def _connection(self) -> Any:
        connection = getattr(self._local, "connection", None)
        is_fresh = connection is not None and time.monotonic() - self._local.used_at < IDLE_SECONDS
        if is_fresh and self.is_open(connection):
            return connection
        self.close()
        connection = get_connection(self.backend)
        try:
            connection.open()
        except Exception:
            connection.close()  # SMTP may have connected, and then been refused the login
            raise
        self._local.connection, self._local.used_at = connection, time.monotonic()
        return connection

    def prepare(self, message: EmailMultiAlternatives, email: OutgoingEmail) -> None:  # noqa: B027
        """Add what only this provider needs to a message. By default, add nothing."""

    def deliver(
        self, connection: Any, message: EmailMultiAlternatives, may_continue: Callable[[], bool]
    ) -> None:
        """Send over an open connection. One HTTP request cannot stop half way, so ignore `may_continue`."""
        connection.send_messages([message])

    def _use_account(self, message: EmailMultiAlternatives, account: Account) -> None:
        if options := account.get(self.name):
            names = declarations()[self.name].account
            extra = {names[name]: value for name, value in options.items() if name in names}
            message.esp_extra = getattr(message, "esp_extra", {}) | extra  # type: ignore[attr-defined]

    @abstractmethod
    def accepted(self, message: EmailMultiAlternatives) -> Outcome:
        """Return the outcome of a send without an error: accepted, or ambiguous without a readable id."""

    @abstractmethod
    def refused(self, error: Exception) -> Outcome:
        """Return the outcome of a send that raised `error`."""

    def refusal(
        self, verdict: Verdict, *, code: str, text: str, wait_seconds: float | None = None
    ) -> Outcome:
        """Return the outcome of a provider's answer whose code has this verdict."""
        outcome = Outcome(verdict, self.name, code=code, text=text, wait_seconds=wait_seconds)
        verdict = judge_refusal(verdict, provider=self.name, error=outcome.error)
        return dataclasses.replace(outcome, verdict=verdict)

    def is_open(self, connection: Any) -> bool:
        """Return whether a kept connection can be used. By default the backend itself finds out."""
        return True

    def has_ended(self, error: Exception) -> bool:
        """Return whether `error` says that the server ended the connection before it had the message."""
        return False

    def not_connected(self, error: Exception) -> Outcome:
        """Return the outcome of a failed `open`. Anymail's backends connect later, so blame our settings."""
        return Outcome(Verdict.MISCONFIGURED, self.name, code=type(error).__name__, text=str(error))


def metadata_of(email: OutgoingEmail) -> dict[str, str]:
    """Return the ids to send with the e-mail, which the provider's webhooks return."""
    return {
        "notification_id": str(email.id),
        "order_id": str(email.order_id),
        "event_type": email.event_type,
    }


def build_message(email: OutgoingEmail, connection: Any) -> EmailMultiAlternatives:
    """Build the message. Its Message-ID is the same in every attempt."""
    message = EmailMultiAlternatives(
        subject=email.subject,
        body=email.body_text,
        from_email=email.from_email,
        to=[recipient_of(email)],
        reply_to=[email.reply_to] if email.reply_to else [],
        # RFC 3834: holiday notices and other responders do not answer such a message.
        headers={"Message-ID": message_id(email), "Auto-Submitted": "auto-generated"},
        connection=connection,
    )
    message.attach_alternative(email.body, "text/html")
    message.metadata = metadata_of(email)  # type: ignore[attr-defined]  # anymail's attribute
    return message


def recipient_of(email: OutgoingEmail) -> str:
    """Return the To header. Mail programs quote it in forwarded e-mails, so its name has no links."""
    return formatted_address(name=break_links(one_line(email.to_name)), recipient_email=email.recipient_email)


def message_id(email: OutgoingEmail) -> str:
    """Return the RFC 5322 Message-ID of a notification, at the domain of its sender."""
    return f"<{email.id}@{_domain_of(email.from_email)}>"


@functools.lru_cache(maxsize=1024)
def _domain_of(address: str) -> str:
    return parseaddr(address)[1].rpartition("@")[2] or "localhost"
