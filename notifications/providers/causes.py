"""What a provider's error means in words, and what to do about it. Pure.

Written from the documents that each provider's `sending` names, RFC 3463 (enhanced codes) and RFC 5321.
The first entry whose provider and pattern match is the answer, so special ones come before general ones.
"""

from __future__ import annotations

import dataclasses
import functools
import re


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    """`meaning` and `advice` are sentences; `helps`: sending again can help before anything is mended."""

    title: str
    meaning: str
    advice: str
    helps: bool = False


NO_SUCH_ADDRESS = Explanation(
    "The address does not exist",
    "The recipient's mail server or the provider says that there is no such address.",
    "Correct the address with the customer and send a copy to it. Sending to this one again cannot help.",
)
MALFORMED_ADDRESS = Explanation(
    "The address is malformed",
    "The provider does not read it as an e-mail address; usually it has a typo.",
    "Correct the address with the customer and send a copy to it. Sending to this one again cannot help.",
)
INACTIVE = Explanation(
    "The provider suppresses the address",
    "The address bounced or complained before, and the provider refuses to write to it.",
    "If the customer wants the e-mail, remove the address from the provider's suppressions, then resend.",
)
MAILBOX_FULL = Explanation(
    "The mailbox is full",
    "The address exists, but its mailbox has no room.",
    "Resend in a day or two, or ask the customer for another address.",
    helps=True,
)
BLOCKED = Explanation(
    "The recipient's server blocks our provider",
    "A block list or the reputation of the sending servers is the reason, not this e-mail.",
    "Ask the provider for another sending server or to be taken off the list, then resend.",
)
POLICY = Explanation(
    "Rejected by policy",
    "The recipient's server refuses content or sender, often for a missing SPF, DKIM or DMARC record.",
    "Check the sending domain's DNS records at the provider, then resend.",
)
TOO_LARGE = Explanation(
    "The e-mail is too large",
    "It is larger than the provider or the recipient's server takes.",
    "Make the template smaller. Stored e-mails keep their content, so give these up.",
)
NO_CREDIT = Explanation(
    "The provider's credit or quota is used up",
    "The account may send no more until it is paid for, or until its period ends.",
    "Raise the plan or wait for the new period, then resend.",
)
SENDER = Explanation(
    "The sender is not verified at the provider",
    "The provider does not allow our account to send from DEFAULT_FROM_EMAIL or its domain.",
    "Verify the sender or its domain at the provider, then resend.",
)
ACCOUNT = Explanation(
    "The provider refuses our account",
    "The API key, login or region is wrong, or the account is suspended, paused or not approved yet.",
    "Check the key and the account at the provider, then resend.",
)
RATE = Explanation(
    "The provider's rate limit",
    "More e-mails were sent than the provider takes in that time.",
    "Lower EMAIL_RATE_LIMIT if this happens often. Resending is safe: it keeps to the rate.",
    helps=True,
)
IDEMPOTENCY = Explanation(
    "The same key was used for another content",
    "An earlier attempt of this e-mail had another sender or content, and Resend keeps its key for 24 hours.",
    "If no webhook proves that the earlier attempt arrived, resend after 24 hours.",
)
LEASE = Explanation(
    "The worker was lost during the attempt",
    "A worker was killed or hung while it sent this e-mail, more often than retries allow.",
    "Look for crashes in the worker's log at these times. The e-mail may have arrived; then resend.",
)
NO_ANSWER = Explanation(
    "The provider's answer was lost",
    "The connection broke or timed out after the e-mail was handed over, so the provider may have it.",
    "Look at the provider's log or wait for its webhook. If it did not arrive, resend.",
    helps=True,
)
NO_CONNECTION = Explanation(
    "The provider could not be reached",
    "No connection came about: DNS, network, firewall, TLS or a wrong address of the API.",
    "Check the network and the provider's status page, then resend.",
    helps=True,
)
PROVIDER_DOWN = Explanation(
    "An error at the provider",
    "The provider answered that something failed on its side.",
    "Look at the provider's status page. Once it works, resend.",
    helps=True,
)
MAILBOX_UNAVAILABLE = Explanation(
    "The mailbox is unavailable",
    "The recipient's server does not take e-mails for this address now: it is disabled, moved or greylisted.",
    "Resend later. If it stays, ask the customer for another address.",
    helps=True,
)
CONTENT = Explanation(
    "The message is invalid",
    "The provider cannot read what we built: a template, a header or a field is wrong.",
    "Mend the template or the setting that the example names. Stored e-mails keep their content.",
)
UNKNOWN = Explanation(
    "Not known yet",
    "No entry of the table of causes matches this error.",
    "Read the example. Resend one e-mail first, and the others once it is sent.",
)

#: Providers (empty: any), a pattern of `last_error`, and what it means.
_KNOWN: list[tuple[str, str, Explanation]] = [
    ("", r"^lease expired\b", LEASE),
    ("resend", r"invalid_idempotent_request|concurrent_idempotent", IDEMPOTENCY),
    ("postmark", r"\b406: ", INACTIVE),
    ("postmark", r"\b405: ", NO_CREDIT),
    ("postmark", r"\b(10|412|413): ", ACCOUNT),
    ("postmark", r"\b(400|401): |\b300: .*'from'", SENDER),
    ("postmark", r"\b300: .*(address|'to')", MALFORMED_ADDRESS),
    ("sendgrid resend postmark mailgun ses", r"suppress(ed|ion) list|inactive (address|recipient)", INACTIVE),
    (
        "",
        r"maximum credits|insufficient (credit|fund)|quota_exceeded|daily (message|sending) quota",
        NO_CREDIT,
    ),
    ("sendgrid resend mailgun", r"^402\b", NO_CREDIT),
    ("ses", r"sendingpaused|accountsuspended", ACCOUNT),
    ("", r"verified sender identity|not verified|mailfromdomainnotverified|invalid_from_address", SENDER),
    ("mailgun", r"'?from'? parameter", SENDER),
    ("smtp", r"\b5\.1\.8\b|\b5\.7\.60\b|sender (address )?rejected", SENDER),
    (
        "",
        r"\b[45]\.2\.2\b|mailbox (is )?full|over ?quota|quota exceeded|exceeded (its )?storage",
        MAILBOX_FULL,
    ),
    ("", r"rate.?limit|too ?many ?(requests|e?mails)|throttl|sending rate|^429\b|^454\b", RATE),
    ("", r"block ?list|black ?list|\bblocked\b|spamhaus|\brbl\b|dnsbl|reputation|poor.{0,20}\bip\b", BLOCKED),
    (
        "",
        r"\b5\.1\.(3|7)\b|valid (e-?mail )?address|illegal (e-?mail )?address|invalid.{0,20}\bto\b",
        MALFORMED_ADDRESS,
    ),
    ("", r"'?to'? parameter|malformed|missing final|local address contains|invaliddomain", MALFORMED_ADDRESS),
    (
        "",
        r"\b5\.1\.[0126]\b|user unknown|unknown user|no such (user|address|mailbox|recipient)",
        NO_SUCH_ADDRESS,
    ),
    ("", r"does ?n.t exist|not exist|recipient (address )?rejected|unknown recipient", NO_SUCH_ADDRESS),
    (
        "",
        r"\b5\.[23]\.[34]\b|^413\b|^552\b|too (large|big)|size (limit|exceed)|exceeds.{0,20}size",
        TOO_LARGE,
    ),
    ("smtp", r"^(530|534|535)\b", ACCOUNT),
    ("", r"\b5\.7\.\d+\b|\bspf\b|dkim|dmarc|policy|\bspam\b|content rejected|security_error", POLICY),
    (
        "",
        r"^(401|403|404|407|410)\b|api.?key|unauthorized|forbidden|credential|signature",
        ACCOUNT,
    ),
    ("", r"^(ReadTimeout|.*Disconnected|ConnectionReset|RemoteDisconnected|Incomplete|Protocol)", NO_ANSWER),
    (
        "",
        r"read timed out|timed? ?out.{0,20}read|connection reset|connection aborted|unexpectedly closed",
        NO_ANSWER,
    ),
    (
        "",
        r"NeverConnected|ConnectTimeout|EndpointConnection|refused|resolve|name or service|certificate",
        NO_CONNECTION,
    ),
    ("", r"unreachable|no route|SSLError|ProxyError|ConnectionError", NO_CONNECTION),
    ("", r"\b[45]\.2\.\d\b|^45[0-2]\b|greylist|mailbox (is )?(unavailable|disabled)", MAILBOX_UNAVAILABLE),
    (
        "",
        r"^(5\d\d)\b(?!.*[245]\.\d+\.\d+)(?=.*(server|service|internal|gateway|unavailable|try))",
        PROVIDER_DOWN,
    ),
    ("sendgrid resend postmark mailgun", r"^(408|409|5\d\d)\b", PROVIDER_DOWN),
    ("ses", r"internalfailure|serviceunavailable", PROVIDER_DOWN),
    ("smtp", r"^421\b", PROVIDER_DOWN),
    (
        "",
        r"^(400|422)\b|ValueError|TypeError|HeaderParse|BadHeader|Unicode|messagerejected|badrequest",
        CONTENT,
    ),
    ("", r"template|serializ|header|subject", CONTENT),
]


@functools.cache
def _compiled() -> list[tuple[frozenset[str], re.Pattern[str], Explanation]]:
    return [
        (frozenset(providers.split()), re.compile(pattern, re.IGNORECASE), explanation)
        for providers, pattern, explanation in _KNOWN
    ]


def explain(*, provider: str, error: str) -> Explanation:
    """Return what a row's `last_error` at its `provider` means; `UNKNOWN` if the table does not know it."""
    for providers, pattern, explanation in _compiled():
        if (not providers or provider in providers) and pattern.search(error):
            return explanation
    return UNKNOWN
