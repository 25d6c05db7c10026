"""Amazon SES' v2 SendEmail through anymail and boto3, and the verdicts of its errors.

Written from the SES API v2 reference ("SendEmail", "Common Errors"), the developer guide ("Amazon SES email
sending errors", "Errors related to the sending quotas") and botocore.exceptions. The error's code decides.

accepted       200 with a `MessageId`
permanent      MessageRejected (content), BadRequestException, other 4xx about the message
transient      5xx except a gateway's (InternalFailure, ServiceUnavailable), 408, 409
unreachable    refused connection, connect timeout, no such host, TLS handshake
throttled      TooManyRequestsException, LimitExceededException, ThrottlingException (rate or daily quota)
misconfigured  AccountSuspendedException, SendingPausedException; UnrecognizedClientException,
               InvalidSignatureException, AccessDeniedException, ExpiredTokenException, RequestExpired (our
               clock), …; no or unreadable credentials, no region
sender refused MailFromDomainNotVerifiedException, MessageRejected "Email address is not verified",
               NotFoundException (configuration set)
ambiguous      no answer after the request was sent, a gateway's (502, 504, 520, 524), or an unreadable 2xx,
               because SES has no idempotency keys

boto3 repeats failed requests by default, which could double a mail. `anymail_backend` disables that.
The first mail imports boto3, because it costs each process 25 MB and 0.15 s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anymail.exceptions import AnymailAPIError
from django.core.mail import EmailMultiAlternatives

from notifications.providers.base import OutgoingEmail, Provider
from notifications.providers.headers import encode_headers
from notifications.providers.http import FROM_A_GATEWAY, by_status, has_failed_to_connect, is_raised_in
from notifications.states.outcomes import Outcome, Verdict

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

_THROTTLED = frozenset(
    {"TooManyRequestsException", "LimitExceededException", "ThrottlingException", "Throttling"}
)
#: Errors about our account or settings whose status (400) would blame the message.
_ABOUT_US = frozenset(
    {
        "AccountSuspendedException",
        "SendingPausedException",
        "AccessDeniedException",
        "NotAuthorized",
        "ExpiredTokenException",
        "RequestExpired",
        "IncompleteSignature",
        "InvalidAction",
    }
)
#: The errors about a sender or its configuration set. A part of the text must be in it.
_ABOUT_SENDER = {
    "MailFromDomainNotVerifiedException": "",
    "MessageRejected": "address is not verified",
    "NotFoundException": "onfiguration set",
}


class SesProvider(Provider):
    name = "ses"
    backend = "notifications.providers.ses.anymail_backend.Backend"

    def prepare(self, message: EmailMultiAlternatives, email: OutgoingEmail) -> None:
        """Encode the headers, because SES gets the whole message as MIME."""
        encode_headers(message)

    def accepted(self, message: EmailMultiAlternatives) -> Outcome:
        """Return the outcome of a 2xx answer. One that has no id may be a proxy's."""
        answer: dict[str, Any] = message.anymail_status.esp_response  # type: ignore[attr-defined]
        id = answer.get("MessageId")
        if isinstance(id, str) and id:
            return Outcome(Verdict.ACCEPTED, self.name, id)
        return Outcome(Verdict.AMBIGUOUS, self.name, code="200", text="the answer has no MessageId")

    def refused(self, error: Exception) -> Outcome:
        """Read boto3's error behind anymail's."""
        from botocore import exceptions as boto
        from botocore.client import BaseClient
        from botocore.parsers import ResponseParserError

        cause = error.__cause__ if isinstance(error, AnymailAPIError) and error.__cause__ else error
        code, text = type(cause).__name__, str(cause)
        match cause:
            case boto.ClientError():
                return self._by_code(cause)
            case (
                boto.NoCredentialsError()
                | boto.PartialCredentialsError()
                | boto.CredentialRetrievalError()
                | boto.TokenRetrievalError()
                | boto.UnauthorizedSSOTokenError()
            ):
                verdict = Verdict.MISCONFIGURED
            case boto.ParamValidationError():
                verdict = Verdict.PERMANENT
            case boto.BotoCoreError() | ResponseParserError() | AnymailAPIError():
                verdict = Verdict.UNREACHABLE if has_failed_to_connect(error) else Verdict.AMBIGUOUS
            case _ if is_raised_in(error, {BaseClient._make_api_call.__code__}):
                verdict = Verdict.AMBIGUOUS  # boto3 raises any error for an answer that it cannot read
            case _:  # from building the message: an invalid header or address
                verdict = Verdict.PERMANENT
        return Outcome(verdict, self.name, code=code, text=text)

    def _by_code(self, error: ClientError) -> Outcome:
        code = str(error.response["Error"].get("Code", ""))
        text = str(error.response["Error"].get("Message", ""))
        status = int(error.response["ResponseMetadata"]["HTTPStatusCode"])
        if status in FROM_A_GATEWAY:  # ignore the body, which the gateway wrote
            verdict = Verdict.AMBIGUOUS
        elif code in _THROTTLED:
            verdict = Verdict.THROTTLED
        elif code in _ABOUT_SENDER and _ABOUT_SENDER[code] in text:
            verdict = Verdict.SENDER_REFUSED
        elif code in _ABOUT_US:
            verdict = Verdict.MISCONFIGURED
        else:
            verdict = by_status(status)
        return self.refusal(verdict, code=code or str(status), text=text)
