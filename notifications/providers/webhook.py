"""The base class of the providers' webhooks: it verifies posts and turns each event into evidence.

Anymail parses a provider's events. `notifications.changes.evidence` finds the e-mail that an event is about.

| event (anymail's name) | evidence |
| --- | --- |
| queued, sent, deferred, opened, clicked … | the provider has the e-mail |
| delivered | likewise, with `delivered_at` |
| bounced, permanent | likewise, with `bounced_at`; the address is suppressed |
| bounced, temporary | the provider has the e-mail |
| rejected | the provider took the e-mail and will not send it: `bounced_at`; the address is suppressed |
| | where the provider says that it bounced or complained before |
| complained | likewise, with `complained_at`; the address is suppressed |
| failed, unknown | none |
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import hmac
import itertools
import json
import re
import time
import uuid
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from anymail.exceptions import (
    AnymailConfigurationError,
    AnymailError,
    AnymailInsecureWebhookWarning,
    AnymailWebhookValidationFailure,
)
from anymail.signals import AnymailTrackingEvent, EventType, RejectReason
from django.http import HttpRequest

from notifications.models import Suppression
from notifications.states.outcomes import MESSAGE_ID_LIMIT
from runtime.addresses import LONGEST
from runtime.personal_data import without_addresses
from runtime.texts import make_storable

#: The errors that parsing any body can raise.
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, OSError, RecursionError)
#: How old a signed post may be. A replayed one would be older.
TOLERANCE_SECONDS = 300.0
#: Providers send up to a thousand events at once. A body of the allowed size has no more real ones than this.
MOST_EVENTS = 5000
#: Of a server's answer so much is read, and so much is kept.
LONGEST_REPLY, LONGEST_BOUNCE_TEXT = 2000, 300
_PROVES_NOTHING = frozenset({EventType.FAILED, EventType.UNKNOWN, EventType.SUBSCRIBED, None})
#: A reply's code at the start of a text, or an enhanced code anywhere, but no part of an IP address.
_OTHER_CODE = re.compile(r"^\s*(4\d\d|552)\b|(?<![\d.])(4\.\d{1,3}|5\.2\.2|5\.[3-7])(\.\d{1,3})?(?![\d.])")
#: Causes of the sender, the message or the way. Their replies often have the code of a mailbox, 550.
_OTHER_WORDS = re.compile(
    r"spamhaus|\brbl\b|dnsbl|\bspam\b|black.?list|\bblock(ed|list|listed|ing)?\b|reputation|\bpolic(y|ies)\b"
    r"|prohibit|\bptr\b|reverse dns|\bspf\b|\bdkim\b|\bdmarc\b|unauthenticated|\brelay"
    r"|too (old|many|large|big)|\bexpired\b|rate.?limit|throttl|\bquota\b|\bfull\b|over ?quota"
    r"|time[d ]? ?out|\bvirus\b|content rejected",
    re.IGNORECASE,
)
#: RFC 3463: the mailbox, its system or its form is wrong, it has moved, is disabled, or takes no mail.
_MAILBOX_CODE = re.compile(r"(?<![\d.])5\.(1\.([1236]|10)|2\.1)(?![\d.])")
_MAILBOX_WORDS = re.compile(
    r"(no such|unknown|invalid|bad|non-?existent) (\w+ )?(user|mailbox|recipient|address|account|person)"
    r"|(user|mailbox|recipient|address|account|domain)( \w+)? "
    r"(is |was |has been )?"
    r"(unknown|not found|invalid|disabled|inactive|suspended|deactivated|rejected|unavailable)"
    r"|(user|mailbox|recipient|address|account|domain|host)\b.{0,80}(does ?n.t|does not|not) exist"
    r"|not? (a )?(valid|such|known) (user|mailbox|recipient|address)|no mailbox|unrouteable address"
    r"|unable to get mx info|no mx\b|previously bounced",
    re.IGNORECASE,
)
_BOUNCED_BEFORE = frozenset({RejectReason.BOUNCED, RejectReason.INVALID})

# A deploy check warns of a missing key. anymail's own warning would add nothing.
warnings.simplefilter("ignore", AnymailInsecureWebhookWarning)


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """One event: the provider has an e-mail. Times are the provider's.

    `notifications.changes.evidence` writes it. An event with `is_proof` false is only counted.

    id               the e-mail's id, from the event's metadata
    message_id       the id with which the provider accepted the e-mail
    header_id        the e-mail's id, from the Message-ID that the event names
    suppress         the reason to suppress the address, or None
    bounced_address  the address of a verified hard bounce without metadata, which is not the event of another
                     sender at the same provider
    bounce_text      what the recipient's server said of a bounce, without addresses
    """

    id: uuid.UUID | None
    message_id: str = ""
    header_id: uuid.UUID | None = None
    kind: str = ""
    is_proof: bool = True
    bounced_address: str = ""
    delivered_at: dt.datetime | None = None
    bounced_at: dt.datetime | None = None
    complained_at: dt.datetime | None = None
    bounce_text: str = ""
    suppress: Suppression.Reason | None = None


class Unsigned(Exception):
    """Nothing proves that the post is the provider's."""


class Malformed(Exception):
    """The body is not a batch of events."""


class Unverifiable(Exception):
    """The signature cannot be checked now. The provider should post again later."""


class Webhook(ABC):
    """A provider's webhook. `key` verifies its posts. If there is no key, `read` does not call `verify`."""

    #: Whether `key` is user:password. Some providers send it only after a challenge.
    has_password: bool = False

    def __init__(self, *, key: str) -> None:
        self.key = key

    def read(self, request: HttpRequest) -> list[Evidence]:
        """Verify a post and return its evidence. Raise `Unsigned`, `Malformed` or `Unverifiable`."""
        if not self.may_be_signed(request.headers):
            raise Unsigned
        try:
            if self.key:
                self.verify(request)
            events = list(itertools.islice(self.parse(request), MOST_EVENTS + 1))
            if len(events) > MOST_EVENTS:
                raise ValueError("too many events")
            return [self._evidence(event) for event in events]
        except AnymailWebhookValidationFailure as error:
            raise Unsigned from error
        except (AnymailError, AnymailConfigurationError, *UNREADABLE) as error:
            raise Malformed from error

    def may_be_signed(self, headers: Mapping[str, str]) -> bool:
        """Return whether `verify` could accept a post with these headers. Without a key all may.

        A post that cannot be the provider's is refused by this before anybody reads its body.
        """
        return not self.key or self.has_signature(headers)

    def has_signature(self, headers: Mapping[str, str]) -> bool:
        """Return whether the headers have a signature in its form, or the password. Only bodies may prove."""
        return not self.has_password or self._has_password(headers)

    def _has_password(self, headers: Mapping[str, str]) -> bool:
        scheme, _, encoded = headers.get("Authorization", "").strip().partition(" ")
        try:
            shown = base64.b64decode(encoded.strip())
        except ValueError:
            return False
        return scheme.lower() == "basic" and hmac.compare_digest(shown, self.key.encode())

    @abstractmethod
    def verify(self, request: HttpRequest) -> None:
        """Raise `Unsigned` or anymail's error unless `key` proves that the provider posted this now."""

    def signature_of(self, request: HttpRequest) -> str:
        """Return the signature of a verified post if it does not cover the event, else an empty text.

        Only one event may have it.
        """
        return ""

    @abstractmethod
    def parse(self, request: HttpRequest) -> Iterable[AnymailTrackingEvent]:
        """Return the events. Raise anymail's errors or one of `UNREADABLE`."""

    def metadata(self, event: AnymailTrackingEvent) -> Mapping[str, Any]:
        return event.metadata if isinstance(event.metadata, dict) else {}

    def message_id(self, event: AnymailTrackingEvent) -> str:
        """Return the id with which the provider accepted the e-mail."""
        return str(event.message_id or "")

    def header(self, event: AnymailTrackingEvent) -> str:
        """Return the Message-ID of the e-mail's own header, or an empty text if the event has none."""
        return ""

    def is_permanent(self, event: AnymailTrackingEvent) -> bool:
        """Return whether a bounce is permanent, unlike a block or a full mailbox."""
        return True

    def why_suppressed(self, event: AnymailTrackingEvent) -> Suppression.Reason | None:
        """Return why to suppress the address after a complaint, permanent bounce or rejection, or None."""
        if event.event_type == EventType.COMPLAINED or event.reject_reason == RejectReason.SPAM:
            return Suppression.Reason.COMPLAINT
        if event.event_type == EventType.BOUNCED or event.reject_reason in _BOUNCED_BEFORE:
            return Suppression.Reason.HARD_BOUNCE
        return None

    def _evidence(self, event: AnymailTrackingEvent) -> Evidence:
        kind = event.event_type
        metadata = self.metadata(event)
        at = _plausible(event.timestamp)
        fact = Evidence(
            _as_id(metadata.get("notification_id")),
            make_storable(self.message_id(event))[:MESSAGE_ID_LIMIT],
            _as_id(self.header(event).strip("<> ").partition("@")[0]),
            str(kind),
        )
        if kind in _PROVES_NOTHING:
            return dataclasses.replace(fact, id=None, is_proof=False)
        if kind == EventType.DELIVERED:
            return dataclasses.replace(fact, delivered_at=at)
        if kind == EventType.COMPLAINED:
            return dataclasses.replace(fact, complained_at=at, suppress=self.why_suppressed(event))
        if kind == EventType.REJECTED or (kind == EventType.BOUNCED and self.is_permanent(event)):
            why = self.why_suppressed(event)
            fact = dataclasses.replace(fact, bounced_at=at, suppress=why, bounce_text=bounce_text(event))
            if self.key and why == Suppression.Reason.HARD_BOUNCE and not metadata:
                address = make_storable(str(event.recipient or ""))[:LONGEST]
                return dataclasses.replace(fact, bounced_address=address)
        return fact


def read_json(body: bytes | str) -> Any:
    """Parse JSON without the members that are null, which anymail would take for values."""
    return json.loads(
        body, object_pairs_hook=lambda pairs: {name: value for name, value in pairs if value is not None}
    )


def raw(event: AnymailTrackingEvent) -> dict[str, Any]:
    """Return the event as the provider posted it, or {} if that is not an object."""
    return event.esp_event if isinstance(event.esp_event, dict) else {}


def has_other_cause(*texts: object) -> bool:
    """Return whether a bounce's status or reply names another cause than the address.

    Temporary failures (4xx), a full mailbox (552, 5.2.2), the causes 5.3 to 5.7 (RFC 3463: system, routing,
    protocol, content, policy), and words of block lists and rules say nothing about the next e-mail.
    """
    return any(_OTHER_CODE.search(str(text)) or _OTHER_WORDS.search(str(text)) for text in texts)


def blames_address(*texts: object) -> bool:
    """Return whether a bounce's status or reply says that there is no such mailbox, and names no other cause.

    >>> blames_address("5.1.1", "550 no such mailbox"), blames_address("", "552 5.2.2 mailbox full")
    (True, False)
    >>> blames_address("550", "Message blocked"), blames_address("", "unable to get mx info")
    (False, True)
    """
    is_mailbox = any(_MAILBOX_CODE.search(str(text)) or _MAILBOX_WORDS.search(str(text)) for text in texts)
    return is_mailbox and not has_other_cause(*texts)


def is_signature(text: str, *, shortest: int, longest: int) -> bool:
    """Return whether a text is base64 of so many bytes.

    >>> is_signature("AAAA", shortest=3, longest=3), is_signature("AA A", shortest=3, longest=3)
    (True, False)
    """
    try:
        return shortest <= len(base64.b64decode(text, validate=True)) <= longest
    except ValueError:
        return False


def is_timely(sent_at: str) -> bool:
    """Return whether a header's time (epoch seconds) is about now.

    >>> is_timely("1"), is_timely("soon"), is_timely(str(time.time()))
    (False, False, True)
    """
    try:
        check_time(float(sent_at))
    except (Unsigned, ValueError):
        return False
    return True


def check_time(sent_at: float, *, retried_for_seconds: float = 0.0) -> None:
    """Raise `Unsigned` unless `sent_at` (epoch seconds) is about now. An older batch may be a replay.

    A provider retries a batch with its first time for `retried_for_seconds`.
    """
    age = time.time() - sent_at
    if not -TOLERANCE_SECONDS <= age <= retried_for_seconds + TOLERANCE_SECONDS:  # refuses NaN, too
        raise Unsigned


def bounce_text(event: AnymailTrackingEvent) -> str:
    """Return the server's answer, or else the provider's words, in one line and without addresses."""
    said = event.mta_response or event.description or ""
    # Masked before the cut, which might leave a part of an address.
    text = without_addresses(" ".join(make_storable(str(said))[:LONGEST_REPLY].split()))
    return text[:LONGEST_BOUNCE_TEXT]


def _as_id(text: Any) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except (ValueError, AttributeError, TypeError):
        return None


def _plausible(at: Any) -> dt.datetime:
    """Return an event's time, or now if it is missing or implausible."""
    now = dt.datetime.now(dt.UTC)
    if not isinstance(at, dt.datetime) or at.tzinfo is None:
        return now
    return at if dt.datetime(2020, 1, 1, tzinfo=dt.UTC) < at < now + dt.timedelta(days=1) else now
