"""Plain SMTP through Django's backend: Mailpit in compose, a relay of one's own elsewhere.

Reply codes as in RFC 5321: 4yz may work later, 5yz will not. Before DATA is answered a lost connection is
ambiguous. There is no metadata in SMTP, so the ids travel as headers.
"""

from __future__ import annotations

import smtplib
from typing import Any

from django.conf import settings
from django.core.mail import EmailMultiAlternatives

from notifications.models import EmailNotification
from notifications.providers.base import Provider, metadata_of
from outbox.outcomes import Outcome, Verdict


class Smtp(Provider):
    """`EMAIL_PROVIDERS=smtp`, with Django's EMAIL_HOST, EMAIL_PORT, …"""

    name = "smtp"
    backend = "django.core.mail.backends.smtp.EmailBackend"

    def open(self, connection: Any) -> None:
        """Django has one time-out for everything; connecting gets its own."""
        connection.timeout = settings.EMAIL_CONNECT_TIMEOUT
        connection.open()
        connection.connection.sock.settimeout(settings.EMAIL_READ_TIMEOUT)

    def prepare(self, message: EmailMultiAlternatives, mail: EmailNotification) -> None:
        """SMTP has no metadata: headers carry it."""
        for key, value in metadata_of(mail).items():
            message.extra_headers[f"X-{key.replace('_', '-').title()}"] = value

    def accepted(self, message: EmailMultiAlternatives) -> Outcome:
        """SMTP gives no id of its own: ours it is."""
        return Outcome(Verdict.ACCEPTED, self.name, message.extra_headers["Message-ID"])

    def not_connected(self, error: Exception) -> Outcome:
        """A refused login is ours to mend; everything else before the first command may pass."""
        verdict = Verdict.TRANSIENT
        if isinstance(error, smtplib.SMTPAuthenticationError | smtplib.SMTPNotSupportedError):
            verdict = Verdict.MISCONFIGURED
        return Outcome(verdict, self.name, code=type(error).__name__, text=str(error))

    def refused(self, error: Exception) -> Outcome:
        """This function will read the reply codes that smtplib keeps in its errors."""
        if isinstance(error, smtplib.SMTPRecipientsRefused):
            code, text = next(iter(error.recipients.values()))
            return self._reply(code, text)
        if isinstance(error, smtplib.SMTPSenderRefused) and error.smtp_code >= 500:
            return Outcome(
                Verdict.MISCONFIGURED, self.name, code=str(error.smtp_code), text=_decode(error.smtp_error)
            )
        if isinstance(error, smtplib.SMTPResponseException):
            return self._reply(error.smtp_code, error.smtp_error)
        lost = isinstance(error, OSError)  # smtplib's own errors are OSErrors, timeouts and resets too
        verdict = Verdict.AMBIGUOUS if lost else Verdict.PERMANENT
        return Outcome(verdict, self.name, code=type(error).__name__, text=str(error))

    def _reply(self, code: int, text: bytes | str) -> Outcome:
        verdict = Verdict.PERMANENT if code >= 500 else Verdict.TRANSIENT
        return Outcome(verdict, self.name, code=str(code), text=_decode(text))


def _decode(text: bytes | str) -> str:
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text
