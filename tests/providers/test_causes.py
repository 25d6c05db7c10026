"""An error is explained in words, for each provider's own way of saying it."""

from __future__ import annotations

import re

import pytest
from django.utils.module_loading import import_string

from notifications.providers import explanations as causes
from notifications.providers.causes import explain
from tests.kit.words import declarations

SAID = [
    ("smtp", "550 5.1.1 <a@b.example>: Recipient address rejected: User unknown", causes.NO_SUCH_ADDRESS),
    ("smtp", "501 5.1.8 Sender address rejected", causes.SENDER),
    ("smtp", "550 no such user here", causes.NO_SUCH_ADDRESS),
    ("smtp", "552 5.2.2 Mailbox full", causes.MAILBOX_FULL),
    ("smtp", "452 4.2.2 The email account is over quota", causes.MAILBOX_FULL),
    ("smtp", "554 5.7.1 Client host [192.0.2.1] blocked using zen.spamhaus.org", causes.BLOCKED),
    ("smtp", "550 5.7.26 Unauthenticated email is not accepted due to domain's DMARC policy", causes.POLICY),
    ("smtp", "552 5.3.4 Message size exceeds fixed limit", causes.TOO_LARGE),
    ("smtp", "535 5.7.8 Authentication credentials invalid", causes.ACCOUNT),
    ("smtp", "450 4.2.0 Greylisted, try again", causes.MAILBOX_UNAVAILABLE),
    ("smtp", "421 4.3.2 Service shutting down", causes.PROVIDER_DOWN),
    ("smtp", "SMTPServerDisconnected Connection unexpectedly closed", causes.NO_ANSWER),
    ("smtp", "ConnectionRefusedError [Errno 111] Connection refused", causes.NO_CONNECTION),
    ("smtp", "550 5.4.5 Daily user sending limit exceeded.", causes.NO_CREDIT),
    ("smtp", "554 5.2.0 SubmissionQuotaExceededException", causes.NO_CREDIT),
    ("smtp", "550 5.1.90 you've reached your daily limit for message recipients", causes.NO_CREDIT),
    ("smtp", "550 only 10 messages per day", causes.NO_CREDIT),
    ("smtp", "550 5.7.26 This mail has been blocked because the sender is unauthenticated", causes.POLICY),
    ("smtp", "421 4.7.26 rate limited: the DKIM signature did not pass", causes.POLICY),
    ("smtp", "550 blocked by DMARC of example.com", causes.POLICY),
    ("smtp", "550 5.7.1 blocked using zen.spamhaus.org", causes.BLOCKED),
    ("smtp", "550 The from address does not match a verified Sender Identity.", causes.SENDER),
    ("sendgrid", "400 account under review", causes.ACCOUNT),
    ("sendgrid", "400 You have exceeded your messaging quota.", causes.NO_CREDIT),
    ("sendgrid", "400 Does not contain a valid address.", causes.MALFORMED_ADDRESS),
    ("sendgrid", "401 Maximum credits exceeded", causes.NO_CREDIT),
    ("sendgrid", "401 The provided authorization grant is invalid, expired, or revoked", causes.ACCOUNT),
    ("sendgrid", "403 The from address does not match a verified Sender Identity.", causes.SENDER),
    ("sendgrid", "413 Payload too large", causes.TOO_LARGE),
    ("sendgrid", "429 too many requests", causes.RATE),
    ("sendgrid", "503 Service Unavailable", causes.PROVIDER_DOWN),
    ("mailgun", "200 Sign in to the network: no credit", causes.NO_ANSWER),
    ("sendgrid", "504 Gateway Time-out: try later", causes.NO_ANSWER),
    ("sendgrid", "ConnectionError the connection broke: SSLError(1, 'bad record mac')", causes.NO_ANSWER),
    ("ses", "SSLError SSL validation failed: decryption failed or bad record mac", causes.NO_ANSWER),
    ("ses", "ConnectionClosedError Connection was closed before we received a valid", causes.NO_ANSWER),
    ("sendgrid", "400 The subject is required.", causes.CONTENT),
    ("sendgrid", "ReadTimeout HTTPSConnectionPool: Read timed out. (read timeout=10)", causes.NO_ANSWER),
    ("sendgrid", "NeverConnected [Errno 111] Connection refused", causes.NO_CONNECTION),
    (
        "postmark",
        "422 406: You tried to send to a recipient that has been marked as inactive.",
        causes.INACTIVE,
    ),
    ("postmark", "422 405: Not allowed to send", causes.NO_CREDIT),
    ("postmark", "422 412: Account is pending approval", causes.ACCOUNT),
    ("postmark", "422 400: The 'From' address is not a Sender Signature", causes.SENDER),
    ("postmark", "422 300: Error parsing 'To': Illegal email address", causes.MALFORMED_ADDRESS),
    (
        "mailgun",
        "400 'to' parameter is not a valid address. please check documentation",
        causes.MALFORMED_ADDRESS,
    ),
    ("mailgun", "400 'from' parameter is not a valid address. please check documentation", causes.SENDER),
    ("mailgun", "402 payment required", causes.NO_CREDIT),
    ("resend", "403 validation_error: The example.com domain is not verified.", causes.SENDER),
    (
        "resend",
        "429 daily_quota_exceeded: You have reached your daily email sending quota.",
        causes.NO_CREDIT,
    ),
    ("resend", "429 rate_limit_exceeded: Too many requests.", causes.RATE),
    ("resend", "409 invalid_idempotent_request: Same key, different payload.", causes.IDEMPOTENCY),
    ("ses", "MessageRejected Email address is not verified. The following identities failed", causes.SENDER),
    ("ses", "InternalFailure Try again later.", causes.PROVIDER_DOWN),
    ("ses", "AccountSuspendedException account is suspended", causes.ACCOUNT),
    ("ses", "TooManyRequestsException Maximum sending rate exceeded.", causes.RATE),
    ("ses", "MessageRejected Message rejected: the content was not accepted", causes.CONTENT),
    ("smtp", "554 transaction failed", causes.UNKNOWN),
    ("mailgun", "554 transaction failed", causes.PROVIDER_DOWN),
    ("dropped", "503 transaction failed", causes.UNKNOWN),
    ("dropped", "429 too many requests", causes.RATE),
    ("", "lease expired no outcome within 300 s", causes.LEASE),
    ("sendgrid", "the moon is full", causes.UNKNOWN),
]
for name, declared in declarations().items():
    if declared.dialect:
        SAID += [(name, *error) for error in import_string(declared.dialect).errors]


@pytest.mark.parametrize(("provider", "error", "meaning"), SAID, ids=[f"{a} {b}"[:60] for a, b, _ in SAID])
def test_it_is_said_in_words(provider, error, meaning):
    assert explain(provider=provider, error=error).title == meaning.title


def test_every_explanation_is_reached_by_an_example():
    explained = {value for value in vars(causes).values() if isinstance(value, causes.Explanation)}
    ours = {causes.RESTORED, causes.NO_ADDRESS, causes.TOO_OLD}  # no provider says these
    assert explained - ours == {meaning for *_, meaning in SAID}


@pytest.mark.parametrize(
    ("provider", "pattern"), [(p, c) for p, d in declarations().items() for c, _ in d.causes]
)
def test_every_pattern_of_a_provider_is_reached_by_an_example_of_it(provider, pattern):
    assert any(re.search(pattern, error, re.IGNORECASE) for said, error, _ in SAID if said == provider)
