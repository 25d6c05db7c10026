"""What the providers tell us afterwards: `POST /webhooks/sendgrid`, `/webhooks/ses`, `/webhooks/resend`.

Anymail checks the signature and reads the events; a whole batch is then written in a few statements, the
same however often, in whatever order and by whichever provider it comes. An event counts for the e-mail
whose id went out in the metadata; others are counted in the log and ignored.

| event (anymail's word) | means |
| --- | --- |
| queued, sent, deferred, opened, clicked … | the provider has it: an unsent row becomes `sent` |
| delivered | likewise, and `delivered_at` |
| bounced for good | likewise, `bounced_at`, and the address is suppressed |
| bounced for now | the provider has it (SendGrid `blocked`, SES and Resend `Transient`) |
| rejected | it took it and will not send it (SendGrid `dropped`, SES `Reject`): `bounced_at`; suppressed if |
| | the address is said to have bounced or complained before |
| complained | the provider has it, `complained_at`, and the address is suppressed |
| failed, unknown | nothing |

Of several times of a kind the earliest counts.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import structlog
from anymail.exceptions import AnymailError, AnymailInsecureWebhookWarning, AnymailWebhookValidationFailure
from anymail.signals import AnymailTrackingEvent, EventType, RejectReason
from django.conf import settings
from django.http import HttpRequest, HttpResponse

from notifications.services import Evidence, record_evidence
from outbox.api.problems import Problem, problem_response
from outbox.models import Heartbeat

log = structlog.get_logger(__name__)

View = Callable[..., HttpResponse]

MOST_BYTES = 1_000_000
NOTE_SECONDS = 5.0
_NOTHING = frozenset({EventType.FAILED, EventType.UNKNOWN, EventType.SUBSCRIBED, None})
_BOUNCED_BEFORE = frozenset({RejectReason.BOUNCED, RejectReason.INVALID})
#: Whatever a body may hold, reading it ends in one of these.
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, OSError, RecursionError)
_noted: dict[str, float] = {}

# What is not signed is refused by `manage.py check --deploy` (notifications/checks.py), not at each request.
warnings.simplefilter("ignore", AnymailInsecureWebhookWarning)


class Webhook:
    """A provider's endpoint: anymail's checks and reading, our batch. Mixed into anymail's view."""

    provider: ClassVar[str]

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """This function will answer whatever comes, never with a 500 for what was sent."""
        try:
            if request.method not in ("POST", "HEAD"):
                raise refused(405, "method-not-allowed", "Events are posted.", Allow="POST, HEAD")
            if int(request.headers.get("Content-Length") or 0) > MOST_BYTES:
                raise refused(413, "too-large", f"A batch has at most {MOST_BYTES:,} bytes.")
            return self._take(request) if request.method == "POST" else HttpResponse()
        except Exception as error:  # noqa: BLE001 - problem_response logs what is not expected
            return problem_response(error, {})

    def _take(self, request: HttpRequest) -> HttpResponse:
        try:
            self.run_validators(request)  # type: ignore[attr-defined]
            self.check_fresh(request)
        except AnymailWebhookValidationFailure as error:
            raise refused(401, "unsigned", "The signature is missing or wrong.") from error
        except (AnymailError, *UNREADABLE) as error:
            raise refused(400, "malformed", "This is no batch of events.") from error
        try:
            events = self.parse_events(request)  # type: ignore[attr-defined]
        except (AnymailError, *UNREADABLE) as error:
            raise refused(400, "malformed", "This is no batch of events.") from error
        record_evidence(provider=self.provider, evidence=_evidence(self.provider, events))
        _note(self.provider)
        return HttpResponse()

    def check_fresh(self, request: HttpRequest) -> None:
        """This function will raise unless the signed time is about now: an old batch may be a replay."""


def _evidence(provider: str, events: Iterable[AnymailTrackingEvent]) -> Iterator[Evidence]:
    """What a batch proves, in our own words."""
    for event in events:
        metadata = event.metadata if isinstance(event.metadata, dict) else {}
        metadata = metadata or _tags(event)
        kind = event.event_type
        try:
            id = uuid.UUID(metadata["notification_id"])
        except (KeyError, ValueError, AttributeError, TypeError):
            id = None
        at = _sane(event.timestamp)
        fact = Evidence(id, provider, _message_id(provider, event), str(kind))
        if kind in _NOTHING:
            yield dataclasses.replace(fact, id=None)
        elif kind == EventType.DELIVERED:
            yield dataclasses.replace(fact, delivered_at=at)
        elif kind == EventType.COMPLAINED:
            yield dataclasses.replace(fact, complained_at=at)
        elif kind == EventType.REJECTED:
            before = event.reject_reason in _BOUNCED_BEFORE
            spam = event.reject_reason == RejectReason.SPAM or "spam reporting" in _text(event).lower()
            yield dataclasses.replace(fact, bounced_at=at, complained_before=spam, bounced_before=before)
        elif kind == EventType.BOUNCED and _for_good(event):
            yield dataclasses.replace(fact, bounced_at=at, bounced_before=True)
        else:
            yield fact


def _tags(event: AnymailTrackingEvent) -> dict[str, Any]:
    """Resend's tags, which come back as an object or as the list that was sent."""
    raw = event.esp_event if isinstance(event.esp_event, dict) else {}
    tags = raw["data"].get("tags") if isinstance(raw.get("data"), dict) else None
    if isinstance(tags, list):
        return {str(tag.get("name")): tag.get("value") for tag in tags if isinstance(tag, dict)}
    return tags if isinstance(tags, dict) else {}


def _for_good(event: AnymailTrackingEvent) -> bool:
    """A block or a full mailbox also comes as a bounce; each provider has its own word for it."""
    raw = event.esp_event if isinstance(event.esp_event, dict) else {}
    if raw.get("type") == "blocked":  # SendGrid
        return False
    bounce = raw.get("bounce") or (raw.get("data") or {}).get("bounce") or {}
    kind = bounce.get("bounceType") or bounce.get("type") or "Permanent"  # SES, Resend
    return kind == "Permanent"


def _text(event: AnymailTrackingEvent) -> str:
    raw = event.esp_event if isinstance(event.esp_event, dict) else {}
    return str(raw.get("reason") or event.description or "")


def _message_id(provider: str, event: AnymailTrackingEvent) -> str:
    """The id that the provider answered with: SendGrid's is the first part of its event's."""
    raw = event.esp_event if isinstance(event.esp_event, dict) else {}
    if provider == "sendgrid":
        return str(raw.get("sg_message_id") or "").partition(".")[0][:255]
    return str(event.message_id or "")[:255]


def _sane(at: Any) -> dt.datetime:
    """An event's time, or now where it can't be one."""
    now = dt.datetime.now(dt.UTC)
    if not isinstance(at, dt.datetime) or at.tzinfo is None:
        return now
    return at if dt.datetime(2020, 1, 1, tzinfo=dt.UTC) < at < now + dt.timedelta(days=1) else now


def check_time(sent: float, *, tolerance: float | None = None) -> None:
    """This function will raise anymail's error unless `sent` (epoch seconds) is about now."""
    allowed = settings.WEBHOOK_TOLERANCE_SECONDS if tolerance is None else tolerance
    if not abs(time.time() - sent) <= allowed:  # so that NaN is refused
        raise AnymailWebhookValidationFailure("stale")


def _note(provider: str) -> None:
    """Leave a mark that this provider's events arrive: held sends wait for them."""
    now = time.monotonic()
    if now - _noted.get(provider, -NOTE_SECONDS) >= NOTE_SECONDS:
        _noted[provider] = now
        Heartbeat.beat(name=f"webhook:{provider}")


def refused(status: int, slug: str, detail: str, **headers: str) -> Problem:
    """This function will make the answer to what is not taken."""
    return Problem(status=status, slug=slug, title="Not taken", detail=detail, headers=headers)
