"""SMTP through Django's backend, for any mail server.

Reply codes are from RFC 5321 (4.2, 4.3.2), RFC 4954 (AUTH), RFC 3207 (STARTTLS) and RFC 1870 (SIZE).

accepted       250 after the final dot
permanent      5yz to RCPT or DATA; 552 to MAIL (too large); a message that cannot be built
transient      4yz (421, 450, 451, 452, …); a new connection lost, or any timed out, between MAIL and the
               final dot
unreachable    refused connection, connect timeout, no such host, TLS handshake; these and 4yz before MAIL
throttled      454 to MAIL, RCPT or DATA ("Throttling failure" of SES' SMTP interface)
misconfigured  5yz to AUTH (535, 534, …), STARTTLS, EHLO or the greeting (554); 530; no AUTH or STARTTLS
               where one is set; a certificate that cannot be trusted; 5yz about a limit of our account
sender refused 5yz to MAIL, except 530 and 552; 5yz about an unverified sender
ambiguous      connection lost, read timeout or unreadable reply after the final dot was sent: the server
               may have taken the mail (RFC 5321, 6.1)

Servers end kept connections after some silence or some messages, with 421 or without a word. If a kept
connection ends before the final dot, the e-mail is sent over a new one. A server that stays silent is not
asked again, because the wait used up the time of the send.
"""

from __future__ import annotations

import contextlib
import re
import smtplib
import socket
import ssl
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.mail import EmailMultiAlternatives
from django.core.mail.backends.smtp import EmailBackend

from notifications.providers.base import OutgoingEmail, Provider, always, metadata_of
from notifications.providers.headers import encode_headers
from notifications.providers.session import is_open
from notifications.states.outcomes import Outcome, Verdict
from runtime.faults import describe_fault

_AUTHENTICATION_REQUIRED = 530
_THROTTLED = 454
_TOO_LARGE = 552
_CLOSING = 421
#: A refusal of more messages over the same connection with another code than 421, as Stalwart's 452 4.4.5.
_ABOUT_CONNECTION = re.compile(r"\b(per|this|in) (session|connection)\b", re.IGNORECASE)
#: More blank lines before a reply are no reply.
_BLANK_LINES = 20


class SmtpProvider(Provider):
    name = "smtp"
    backend = "notifications.providers.smtp.backend.Backend"

    def prepare(self, message: EmailMultiAlternatives, email: OutgoingEmail) -> None:
        """Send the ids as headers, because SMTP has no metadata. Encode texts in headers."""
        encode_headers(message)
        for key, value in metadata_of(email).items():
            message.extra_headers[f"X-{key.replace('_', '-').title()}"] = value

    def deliver(
        self, connection: Any, message: EmailMultiAlternatives, may_continue: Callable[[], bool]
    ) -> None:
        """Send, and give up before the final dot once `may_continue` returns false."""
        connection.connection.may_continue = may_continue
        super().deliver(connection, message, may_continue)

    def accepted(self, message: EmailMultiAlternatives) -> Outcome:
        """Return the outcome with our Message-ID. SMTP answers without an id."""
        return Outcome(Verdict.ACCEPTED, self.name, message.extra_headers["Message-ID"])

    def is_open(self, connection: Any) -> bool:
        return is_open(connection.connection.sock)

    def has_ended(self, error: Exception) -> bool:
        """Return whether the connection ended before the final dot, with a reply or without a word."""
        if self._has_sent_message() or not isinstance(error, smtplib.SMTPException):
            return False
        if isinstance(error, smtplib.SMTPServerDisconnected):
            return not isinstance(error.__context__, TimeoutError)
        code, text = _reply_of(error)
        return code == _CLOSING or (400 <= code < 500 and bool(_ABOUT_CONNECTION.search(text)))

    def not_connected(self, error: Exception) -> Outcome:
        """Distinguish wrong settings from a server that cannot be used now."""
        if isinstance(error, smtplib.SMTPResponseException):
            verdict = Verdict.MISCONFIGURED if error.smtp_code >= 500 else Verdict.UNREACHABLE
            return self._outcome(verdict, code=str(error.smtp_code), text=error.smtp_error)
        ours = isinstance(error, smtplib.SMTPNotSupportedError | ssl.SSLCertVerificationError)
        # smtplib raises exactly this class if the server offers no way to log in.
        ours = ours or type(error) is smtplib.SMTPException or not isinstance(error, OSError)
        verdict = Verdict.MISCONFIGURED if ours else Verdict.UNREACHABLE
        return self._outcome(verdict, code=type(error).__name__, text=_words_of(error))

    def refused(self, error: Exception) -> Outcome:
        """Return the outcome by the reply code in smtplib's error, or by the state of the connection."""
        if isinstance(error, Interrupted):
            return Outcome(Verdict.RETURNED, self.name)
        if isinstance(error, smtplib.SMTPRecipientsRefused):
            return self._reply(*_reply_of(error))
        if isinstance(error, smtplib.SMTPSenderRefused) and error.smtp_code not in (_TOO_LARGE, _THROTTLED):
            verdict = Verdict.SENDER_REFUSED if error.smtp_code >= 500 else Verdict.TRANSIENT
            if error.smtp_code == _AUTHENTICATION_REQUIRED:
                verdict = Verdict.MISCONFIGURED
            return self._outcome(verdict, code=str(error.smtp_code), text=error.smtp_error)
        # smtplib raises exactly SMTPResponseException, with its own code, for a reply that it cannot read.
        if (
            isinstance(error, smtplib.SMTPResponseException)
            and type(error) is not smtplib.SMTPResponseException
        ):
            return self._reply(error.smtp_code, error.smtp_error)
        verdict = Verdict.PERMANENT  # from building the message: an invalid header or address
        if isinstance(error, OSError):  # smtplib's errors are OSErrors, and so are timeouts and resets
            verdict = Verdict.AMBIGUOUS if self._has_sent_message() else Verdict.TRANSIENT
        return self._outcome(verdict, code=type(error).__name__, text=_words_of(error))

    def _has_sent_message(self) -> bool:
        connection = getattr(self._local, "connection", None)
        return bool(connection and connection.connection and connection.connection.has_sent_message)

    def _reply(self, code: int, text: bytes | str) -> Outcome:
        verdict = Verdict.PERMANENT if code >= 500 else Verdict.TRANSIENT
        if code < 400:  # not a refusal, or -1 for a reply that smtplib could not read
            verdict = Verdict.AMBIGUOUS
        elif code == _AUTHENTICATION_REQUIRED:
            verdict = Verdict.MISCONFIGURED
        elif code == _THROTTLED:
            verdict = Verdict.THROTTLED
        return self._outcome(verdict, code=str(code), text=text)

    def _outcome(self, verdict: Verdict, *, code: str, text: bytes | str) -> Outcome:
        text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return self.refusal(verdict, code=code, text=text)


def _words_of(error: Exception) -> str:
    """Return what happened in words, or the text of an error that is none of the network."""
    is_silent = isinstance(error, smtplib.SMTPServerDisconnected)  # smtplib's for a time-out, too
    seconds = settings.EMAIL_READ_TIMEOUT if is_silent else settings.EMAIL_TIMEOUT
    host = settings.EMAIL_HOST
    return (isinstance(error, OSError) and describe_fault(error, seconds=seconds, host=host)) or str(error)


def _reply_of(error: smtplib.SMTPException) -> tuple[int, str]:
    """Return the code and the text of the reply in an error of smtplib, or 0 and "" if it has none."""
    code: int = 0
    text: bytes | str = ""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        code, text = next(iter(error.recipients.values()))
    elif isinstance(error, smtplib.SMTPResponseException):
        code, text = error.smtp_code, error.smtp_error
    return code, text.decode("utf-8", "replace") if isinstance(text, bytes) else text


class Interrupted(Exception):
    """The dialogue was given up before the final dot, so the server does not have the message."""


class Connection(smtplib.SMTP):
    """A connection that knows whether a whole message was sent. Its read and connect time-outs differ."""

    #: The final dot of the message was sent. A lost connection is ambiguous.
    has_sent_message = False
    #: Whether the message may still be sent.
    may_continue: Callable[[], bool] = staticmethod(always)

    def send(self, s: Any) -> None:
        """Note a final dot. smtplib sends commands as str, and a message with its final dot as one bytes."""
        is_message = isinstance(s, bytes) and s.endswith(b"\r\n.\r\n")
        if is_message:
            self._check()
        super().send(s)
        self.has_sent_message |= is_message

    def putcmd(self, cmd: str, args: str = "") -> None:
        """Send a command, unless it belongs to a message that may no longer be sent."""
        if cmd == "mail":
            self.has_sent_message = False
        if cmd in ("mail", "rcpt", "data"):
            self._check()
        super().putcmd(cmd, args)

    def getreply(self) -> tuple[int, bytes]:
        """Read a reply. Skip blank lines before it, which smtplib takes for an unreadable reply."""
        reply = super().getreply()
        for _ in range(_BLANK_LINES):
            if reply != (-1, b""):
                break
            reply = super().getreply()
        return reply

    def quit(self) -> tuple[int, bytes]:
        """Say QUIT and close, without a wait for the reply, which would delay the next e-mail."""
        with contextlib.suppress(smtplib.SMTPServerDisconnected):
            self.putcmd("quit")
        self.close()
        return 221, b""

    def _check(self) -> None:
        """Raise `Interrupted` if the next reply could come too late.

        Slow replies could outlast the lease, or the grace period of a stop. Close the connection first: a
        QUIT would wait for one more reply.
        """
        if not self.may_continue():
            self.close()
            raise Interrupted

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        connected = super()._get_socket(host, port, timeout)  # type: ignore[misc]  # typeshed leaves it out
        connected.settimeout(settings.EMAIL_READ_TIMEOUT)
        return connected  # type: ignore[no-any-return]


class Backend(EmailBackend):
    """Django's backend over `Connection`; EMAIL_TIMEOUT is the time-out for connecting."""

    @property
    def connection_class(self) -> type[smtplib.SMTP]:
        return Connection

    def open(self) -> bool | None:
        """Connect, and send EHLO or HELO now. Otherwise a refusal of them would count as the message's."""
        is_new = super().open()
        if is_new and self.connection is not None:
            self.connection.ehlo_or_helo_if_needed()
        return is_new
