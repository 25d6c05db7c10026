"""Explain a provider's error, name the setting that may cause it, and tell whose failure it is.

Written from RFC 3463 (enhanced codes), RFC 5321 and the documents that each provider's `backend` names. A
provider's declaration has the patterns of errors that only it gives.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence

from notifications.providers.explanations import (
    ACCOUNT,
    BLOCKED,
    CONTENT,
    INACTIVE,
    LEASE,
    MAILBOX_FULL,
    MAILBOX_UNAVAILABLE,
    MALFORMED_ADDRESS,
    NO_ADDRESS,
    NO_ANSWER,
    NO_CONNECTION,
    NO_CREDIT,
    NO_SUCH_ADDRESS,
    POLICY,
    PROVIDER_DOWN,
    RATE,
    RESTORED,
    SENDER,
    TOO_LARGE,
    TOO_OLD,
    UNKNOWN,
    Explanation,
)
from notifications.providers.registry import Protocol, declarations
from notifications.states.outcomes import Verdict
from notifications.states.transitions import TRIED, EndedBy

ANY, HTTP, SMTP = None, Protocol.HTTP, Protocol.SMTP

_PERIOD = r"per (\d+ )?(second|minute|hour|day|month)s?"
#: Refusals of our account or sender, which come with the code of a permanent refusal of the message, such as
#: Gmail's 550 5.4.5 and Exchange's 554 5.2.0 and 550 5.1.90. They must not match what a server says of a
#: recipient: a full or disabled mailbox, mails that come to it too fast, the size of a message.
_ABOUT_US: list[tuple[Protocol | None, str, Explanation]] = [
    (ANY, r"\b5\.4\.5\b|\b5\.1\.90\b|\b5\.7\.(232|233|705)\b|submission ?quota", NO_CREDIT),
    (
        ANY,
        r"\b(daily|hourly|monthly|sending|outgoing|outbound)( \w+){0,3} (limit|quota)"
        r"|\b(limit|quota) for sending",
        NO_CREDIT,
    ),
    (ANY, rf"\b(messages|e-?mails|rcpts|recipients) {_PERIOD}\b", NO_CREDIT),
    (HTTP, r"^(?!.*\b[45]\.\d+\.\d+).*\bquota\b(?!@)", NO_CREDIT),
    (ANY, r"\baccount( \w+){0,3} under review|\bsending( \w+){0,3} (paused|suspended|disabled)", ACCOUNT),
    (
        ANY,
        r"\byour( \w+){0,2} account( \w+){0,4} (suspended|disabled|deactivated|paused|frozen|blocked|locked)",
        ACCOUNT,
    ),
    (SMTP, r"verified sender identity|email address is not verified", SENDER),
]

#: What ended an e-mail, if it was none of its attempts.
_UNTRIED = {
    EndedBy.RESTORE: RESTORED,
    EndedBy.AGE: TOO_OLD,
    EndedBy.NO_ADDRESS: NO_ADDRESS,
}
#: The protocol, a pattern of `last_error`, and its explanation. Special patterns come before general ones.
_KNOWN: list[tuple[Protocol | None, str, Explanation]] = [
    (ANY, r"^lease expired\b", LEASE),
    (HTTP, r"^(2\d\d|502|504|520|524)\b", NO_ANSWER),  # a proxy or gateway wrote the text
    *_ABOUT_US,
    (HTTP, r"suppress(ed|ion) list|inactive (address|recipient)", INACTIVE),
    (
        ANY,
        r"maximum credits|insufficient (credit|fund)|quota_exceeded|daily (message|sending) quota",
        NO_CREDIT,
    ),
    (HTTP, r"^402\b", NO_CREDIT),
    (ANY, r"verified sender identity|not verified|mailfromdomainnotverified|invalid_from_address", SENDER),
    (SMTP, r"\b5\.1\.8\b|\b5\.7\.60\b|sender (address )?rejected", SENDER),
    # The words for what is wrong come before those for what was done about it, such as "blocked".
    (ANY, r"\bspf\b|\bdkim\b|\bdmarc\b|unauthenticated|not authenticated|\b[45]\.7\.2[0-79]\b", POLICY),
    (
        ANY,
        r"\b[45]\.2\.2\b|mailbox (is )?full|over ?quota|quota exceeded|exceeded (its )?storage",
        MAILBOX_FULL,
    ),
    (ANY, r"rate.?limit|too ?many ?(requests|e?mails)|throttl|sending rate|^429\b|^454\b", RATE),
    (
        ANY,
        r"block ?list|black ?list|\bblocked\b|spamhaus|\brbl\b|dnsbl|reputation|poor.{0,20}\bip\b",
        BLOCKED,
    ),
    (
        ANY,
        r"\b5\.1\.(3|7)\b|valid (e-?mail )?address|illegal (e-?mail )?address|invalid.{0,20}\bto\b",
        MALFORMED_ADDRESS,
    ),
    (
        ANY,
        r"'?to'? parameter|malformed|missing final|local address contains|invaliddomain",
        MALFORMED_ADDRESS,
    ),
    (
        ANY,
        r"\b5\.1\.[0126]\b|user unknown|unknown user|no such (user|address|mailbox|recipient)",
        NO_SUCH_ADDRESS,
    ),
    (ANY, r"does ?n.t exist|not exist|recipient (address )?rejected|unknown recipient", NO_SUCH_ADDRESS),
    (
        ANY,
        r"\b5\.[23]\.[34]\b|^413\b|^552\b|too (large|big)|size (limit|exceed)|exceeds.{0,20}size",
        TOO_LARGE,
    ),
    (SMTP, r"^(530|534|535)\b", ACCOUNT),
    (ANY, r"\b5\.7\.\d+\b|\bspf\b|dkim|dmarc|policy|\bspam\b|content rejected|security_error", POLICY),
    (
        ANY,
        r"^(401|403|404|407|410)\b|api.?key|unauthorized|forbidden|credential|signature",
        ACCOUNT,
    ),
    (ANY, r"^(ReadTimeout|.*Disconnected|ConnectionReset|RemoteDisconnected|Incomplete|Protocol)", NO_ANSWER),
    (
        ANY,
        r"read timed out|timed? ?out.{0,20}read|unexpectedly closed|bad record mac"
        r"|connection (reset|aborted|broke|was closed)",
        NO_ANSWER,
    ),
    (
        ANY,
        r"NeverConnected|ConnectTimeout|EndpointConnection|refused|resolve|name or service|certificate",
        NO_CONNECTION,
    ),
    (ANY, r"unreachable|no route|SSLError|ProxyError|ConnectionError", NO_CONNECTION),
    (ANY, r"\b[45]\.2\.\d\b|^45[0-2]\b|greylist|mailbox (is )?(unavailable|disabled)", MAILBOX_UNAVAILABLE),
    (
        ANY,
        r"^(5\d\d)\b(?!.*[245]\.\d+\.\d+)(?=.*(server|service|internal|gateway|unavailable|try))",
        PROVIDER_DOWN,
    ),
    (HTTP, r"^(408|409|5\d\d)\b", PROVIDER_DOWN),
    (SMTP, r"^421\b", PROVIDER_DOWN),
    (
        ANY,
        r"^(400|422)\b|ValueError|TypeError|HeaderParse|BadHeader|Unicode|messagerejected|badrequest",
        CONTENT,
    ),
    (ANY, r"template|serializ|header|subject", CONTENT),
]


@functools.cache
def _compiled(provider: str) -> list[tuple[re.Pattern[str], Explanation]]:
    own = declared.causes if (declared := declarations().get(provider)) else ()
    return _compile(own) + _compile(_spoken(_KNOWN, provider))


@functools.cache
def _compiled_about_us(provider: str) -> list[tuple[re.Pattern[str], Explanation]]:
    return _compile(_spoken(_ABOUT_US, provider))


def _spoken(
    rows: Sequence[tuple[Protocol | None, str, Explanation]], provider: str
) -> list[tuple[str, Explanation]]:
    """Return the patterns of the provider's protocol."""
    declared = declarations().get(provider)  # a row may name a provider that a later release dropped
    spoken = declared.protocol if declared else ANY
    return [(pattern, explanation) for protocol, pattern, explanation in rows if protocol in (ANY, spoken)]


def _compile(rows: Iterable[tuple[str, Explanation]]) -> list[tuple[re.Pattern[str], Explanation]]:
    return [(re.compile(pattern, re.IGNORECASE), explanation) for pattern, explanation in rows]


def judge_refusal(verdict: Verdict, *, provider: str, error: str) -> Verdict:
    """Return the verdict of a refusal by its text, if the code blames the message for what is ours.

    Another provider may take the e-mail, and the same one after our account or sender is accepted again.
    """
    if verdict not in (Verdict.PERMANENT, Verdict.SENDER_REFUSED):
        return verdict
    for pattern, explanation in _compiled_about_us(provider):
        if pattern.search(error):
            return Verdict.SENDER_REFUSED if explanation is SENDER else Verdict.MISCONFIGURED
    return verdict


#: What is wrong with one recipient, or with one e-mail.
_ABOUT_RECIPIENT = frozenset(
    {NO_SUCH_ADDRESS, MALFORMED_ADDRESS, MAILBOX_FULL, MAILBOX_UNAVAILABLE, INACTIVE, TOO_LARGE}
)
#: RFC 3463, 3.2: the status of an address.
_ADDRESS_STATUS = re.compile(r"\b5\.1\.\d{1,3}\b")


def is_about_recipient(*, provider: str, error: str) -> bool:
    """Return whether a refusal is certainly of one recipient, or of one e-mail for its size."""
    explanation = explain(provider=provider, error=error)
    return explanation in _ABOUT_RECIPIENT or bool(_ADDRESS_STATUS.search(error))


def explain_email(*, provider: str, ended_by: str, error: str) -> Explanation:
    """Explain what ended an e-mail. `error` is its `last_error`, which counts only if it was tried."""
    if ended_by in TRIED:
        return explain(provider=provider, error=error)
    return _UNTRIED.get(EndedBy(ended_by), UNKNOWN) if ended_by else UNKNOWN


def explain(*, provider: str, error: str) -> Explanation:
    """Explain a provider's answer by the first pattern that matches, or return `UNKNOWN`.

    The provider's own patterns come first, then the table's in its order.
    """
    for pattern, explanation in _compiled(provider):
        if pattern.search(error):
            return explanation
    return UNKNOWN


#: The setting to check for an error with this explanation. The names in braces are the provider's own.
_BLAMED: dict[Explanation, str] = {
    ACCOUNT: "{key}",
    SENDER: "DEFAULT_FROM_EMAIL",
    NO_CONNECTION: "{url}",
    NO_ANSWER: "{url}",
    RATE: "EMAIL_RATE_LIMIT",
    NO_CREDIT: "the plan of the account",
    CONTENT: "the template of the event, and EMAIL_TEMPLATES_DIR",
    NO_SUCH_ADDRESS: "the recipient's address",
    MALFORMED_ADDRESS: "the recipient's address",
    INACTIVE: "the recipient's address",
}
#: Statuses and errors of an address at which no API is, and answers that are not the API's.
_WRONG_URL = re.compile(r"^(404|405|421)\b|JSONDecodeError|invalid json|^200\b", re.IGNORECASE)


def blame(*, provider: str, error: str) -> str:
    """Return what to check after an error: usually the name of a setting."""
    declared = declarations()[provider]
    own = (setting for pattern, setting in declared.blamed if re.search(pattern, error, re.IGNORECASE))
    if setting := next(own, ""):
        return setting
    url = declared.url_setting
    if declared.protocol is HTTP and _WRONG_URL.search(error):
        return url
    advice = _BLAMED.get(explain(provider=provider, error=error), "the status page and the account")
    return advice.format(url=url, key=declared.api_key or url)
