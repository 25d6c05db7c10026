"""Amazon SES (API v2) through anymail and boto3, and what its answers mean.

Errors as in AWS' documentation ("SendEmail", "Common Errors") and botocore's exceptions: a message id is
accepted; BadRequest and MessageRejected are the message's fault; a suspended or paused account, an unverified
sender, a missing configuration set or wrong credentials are ours; throttling and limits pass with time; 5xx
are theirs. SES has no idempotency key, so a lost answer is ambiguous; boto3's own retries, which would hide
one, are off (settings). SES writes a Message-ID of its own.
"""

from __future__ import annotations

from django.core.mail import EmailMultiAlternatives

from notifications.providers.base import Provider
from outbox.outcomes import Outcome, Verdict

_THROTTLED = frozenset(
    {"TooManyRequestsException", "Throttling", "ThrottlingException", "RequestLimitExceeded"}
)
_ABOUT_US = frozenset(
    {
        "AccountSuspendedException",
        "SendingPausedException",
        "MailFromDomainNotVerifiedException",
        "NotFoundException",
        "AccessDeniedException",
        "UnrecognizedClientException",
        "InvalidClientTokenId",
        "SignatureDoesNotMatch",
        "ExpiredTokenException",
    }
)
#: A sending quota is counted over a day.
LIMIT_SECONDS = 300.0


class Ses(Provider):
    """`EMAIL_PROVIDERS=ses`; credentials and region as boto3 finds them."""

    name = "ses"
    backend = "anymail.backends.amazon_ses.EmailBackend"
    idle_seconds = float("inf")  # a boto3 client is dear to make, and looks at its connections itself

    def accepted(self, message: EmailMultiAlternatives) -> Outcome:
        """The id is SES' own, which its events repeat."""
        answer = message.anymail_status.esp_response  # type: ignore[attr-defined]
        return Outcome(Verdict.ACCEPTED, self.name, str(answer.get("MessageId", "")))

    def refused(self, error: Exception) -> Outcome:
        """This function will read botocore's error under anymail's."""
        from botocore import exceptions as boto

        cause = error.__cause__ or error
        if isinstance(cause, boto.ClientError):
            return self._answered(cause.response)
        verdict = Verdict.PERMANENT  # the message could not even be made
        if isinstance(cause, boto.NoCredentialsError | boto.PartialCredentialsError | boto.NoRegionError):
            verdict = Verdict.MISCONFIGURED
        elif isinstance(cause, boto.ConnectTimeoutError | boto.EndpointConnectionError):
            verdict = Verdict.TRANSIENT
        elif isinstance(cause, boto.HTTPClientError):
            verdict = Verdict.AMBIGUOUS
        return Outcome(verdict, self.name, code=type(cause).__name__, text=str(cause))

    def _answered(self, answer: dict[str, dict[str, object]]) -> Outcome:
        code = str(answer.get("Error", {}).get("Code", ""))
        text = str(answer.get("Error", {}).get("Message", ""))
        status = int(str(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)))
        verdict, wait = Verdict.PERMANENT, None
        if code in _THROTTLED or status == 429:
            verdict = Verdict.THROTTLED
        elif code == "LimitExceededException":
            verdict, wait = Verdict.THROTTLED, LIMIT_SECONDS
        elif code in _ABOUT_US or status in (401, 403) or "not verified" in text:
            verdict = Verdict.MISCONFIGURED
        elif status >= 500:
            verdict = Verdict.TRANSIENT
        return Outcome(verdict, self.name, code=code or str(status), text=text, wait=wait)

    def not_connected(self, error: Exception) -> Outcome:
        """Opening connects to nothing yet: only our own configuration can fail."""
        return Outcome(Verdict.MISCONFIGURED, self.name, code=type(error).__name__, text=str(error))
