"""Event webhooks as SendGrid posts them: batches of events, signed on request, tried again on a non-2xx.

Called by sandbox.Sandbox. Field names, headers and the signed content (timestamp, then body) are those of
SendGrid's "Event Webhook Reference" and "Event Webhook Security Features".
"""

from __future__ import annotations

import base64
import heapq
import http.client
import itertools
import json
import random
import re
import secrets
import threading
import time
import urllib.parse
import urllib.request
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from config.local.sandbox.mails import Mail

MAX_WAITING = 200_000  # events; what comes on top is counted as lost
MAX_BATCH = 500  # events
ATTEMPTS = 8  # the waits between them double from half a second: about a minute in all
TIMEOUT = 5.0  # seconds
PAUSE = 0.5  # seconds between two posts: SendGrid gathers events too
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # straight, whatever the environment
_OUTCOMES: dict[str, tuple[str, dict[str, str]]] = {
    # what a recipient can be told to do: the event in place of "delivered", and what SendGrid adds to it
    "bounce": (
        "bounce",
        {"type": "bounce", "status": "5.1.1", "reason": "550 5.1.1 no such mailbox"},
    ),
    "blocked": (
        "bounce",
        {"type": "blocked", "status": "4.7.1", "reason": "421 4.7.1 try again later"},
    ),
    "dropped": ("dropped", {"status": "5.0.0", "reason": "Bounced Address"}),
    "deferred": ("deferred", {"attempt": "1", "response": "450 4.2.0 mailbox busy"}),
    "spamreport": ("spamreport", {}),
}
_KNOWN_EVENTS = frozenset({"processed", "delivered", *(event for event, _ in _OUTCOMES.values())})


class InvalidWebhookSettings(ValueError):
    """Settings that cannot be, with the reason."""


@dataclass(frozen=True)
class WebhookSettings:
    """Where events go and which.

    events       which kinds are posted at all
    delay        seconds from acceptance to the first post; each further event of a mail follows at once
    probability  that an event is posted
    repeat       how many times each is posted
    reorder      events wait up to twice the delay and are shuffled within a batch
    recipients   regular expression → bounce, blocked, dropped, deferred or spamreport; others are delivered
    private_key  signs the posts: a P-256 key, as PEM or as base64 of its PKCS 8 form
    """

    url: str
    events: tuple[str, ...] = tuple(sorted(_KNOWN_EVENTS))
    delay: float = 0.2
    probability: float = 1.0
    repeat: int = 1
    reorder: bool = False
    recipients: dict[str, str] = field(default_factory=dict)
    private_key: str = ""

    def __post_init__(self) -> None:
        try:
            self._check()
        except (AttributeError, TypeError, ValueError, re.error) as error:
            raise InvalidWebhookSettings(str(error)) from error

    def _check(self) -> None:
        if urllib.parse.urlsplit(self.url).scheme not in ("http", "https"):
            raise ValueError("url must be an http or https URL")
        if not set(self.events) <= _KNOWN_EVENTS:
            raise ValueError(f"events must be some of {', '.join(sorted(_KNOWN_EVENTS))}")
        if not 0 <= self.probability <= 1 or not 0 <= self.delay <= 3600:
            raise ValueError("probability must be from 0 to 1, delay from 0 to 3600")
        if type(self.repeat) is not int or not 1 <= self.repeat <= 100:
            raise ValueError("repeat must be a whole number from 1 to 100")
        if type(self.reorder) is not bool:
            raise ValueError("reorder must be true or false")
        for pattern, outcome in self.recipients.items():
            re.compile(pattern)
            if outcome not in _OUTCOMES:
                raise ValueError(f"a recipient's outcome must be one of {', '.join(_OUTCOMES)}")
        if self.private_key:
            _load_key(self.private_key)

    @classmethod
    def from_json(cls, value: object) -> WebhookSettings:
        """This function will read settings from the control API; raises InvalidWebhookSettings."""
        known = [each.name for each in fields(cls)]
        if not isinstance(value, dict) or "url" not in value or not set(value) <= set(known):
            raise InvalidWebhookSettings(f"webhook settings are an object with url, of {', '.join(known)}")
        if "recipients" in value and not isinstance(value["recipients"], dict):
            raise InvalidWebhookSettings("recipients must be an object")
        events = value.get("events", cls.events)
        if not isinstance(events, list | tuple) or not all(isinstance(event, str) for event in events):
            raise InvalidWebhookSettings("events must be a list of names")
        return cls(**{**value, "events": tuple(events)})

    def as_json(self) -> dict[str, Any]:
        """This function will give the settings as JSON values, but for the private key."""
        return {**asdict(self), "private_key": "set" if self.private_key else ""}

    def outcome_for(self, recipient: str) -> list[tuple[str, dict[str, str]]]:
        """This function will give a recipient's events in their order, each with its own fields."""
        processed: tuple[str, dict[str, str]] = ("processed", {})
        delivered: tuple[str, dict[str, str]] = ("delivered", {"response": "250 OK"})
        told = next(
            (_OUTCOMES[out] for pat, out in self.recipients.items() if re.search(pat, recipient)), None
        )
        if told is None:
            story = [processed, delivered]
        elif told[0] == "dropped":
            story = [told]
        else:
            story = [processed, delivered, told] if told[0] == "spamreport" else [processed, told]
        return [step for step in story if step[0] in self.events]


class Webhooks:
    """The events that are waiting, and the thread that posts them. `settings` may be changed at any time."""

    def __init__(self, *, settings: WebhookSettings | None) -> None:
        self.settings = settings
        self._changed = threading.Condition()
        self._order = itertools.count()
        self._waiting: list[tuple[float, int, dict[str, Any]]] = []
        self._stopped = False
        self._posted = self._failed = self._lost = 0

    def start(self) -> None:
        """This function will start the posting thread."""
        threading.Thread(target=self._run, name="sandbox-webhooks", daemon=True).start()

    def stop(self) -> None:
        """This function will end the posting thread; events that still wait are not posted."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def stats(self) -> dict[str, int]:
        """This function will count events: posted with a 2xx, given up or dropped, and waiting."""
        with self._changed:
            return {
                "posted": self._posted,
                "failed_posts": self._failed,
                "lost": self._lost,
                "waiting": len(self._waiting),
            }

    def mail_accepted(self, *, mail: Mail) -> None:
        """This function will let the events of an accepted mail follow."""
        settings = self.settings
        if settings is None:
            return
        smtp_id = next((v for name, v in mail.headers.items() if name.lower() == "message-id"), "")
        now = time.time()
        with self._changed:
            for recipient in mail.recipients:
                for event, extra in settings.outcome_for(recipient):
                    if random.random() >= settings.probability:  # noqa: S311 - dice
                        continue
                    body = {
                        **mail.custom_args,
                        "email": recipient,
                        "event": event,
                        "timestamp": int(now),
                        "sg_message_id": f"{mail.message_id}.sandbox-0.0",
                        **({"smtp-id": smtp_id} if smtp_id and event != "spamreport" else {}),
                        **extra,
                    }
                    for _ in range(settings.repeat):
                        extra_wait = random.uniform(0, settings.delay) if settings.reorder else 0  # noqa: S311
                        self._push(now + settings.delay + extra_wait, body)
            self._changed.notify_all()

    def _push(self, due: float, event: dict[str, Any]) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._lost += 1
        else:
            heapq.heappush(self._waiting, (due, next(self._order), event))

    def _run(self) -> None:
        while batch := self._next_batch():
            self._deliver(batch)
            with self._changed:
                self._changed.wait_for(lambda: self._stopped, timeout=PAUSE)

    def _next_batch(self) -> list[dict[str, Any]]:
        """Wait until something is due; empty when the sandbox stops."""
        with self._changed:
            while not self._stopped:
                wait = self._waiting[0][0] - time.time() if self._waiting else None
                if wait is not None and wait <= 0:
                    batch: list[dict[str, Any]] = []
                    while self._waiting and self._waiting[0][0] <= time.time() and len(batch) < MAX_BATCH:
                        batch.append(heapq.heappop(self._waiting)[2])
                    return batch
                self._changed.wait(wait)
            return []

    def _deliver(self, batch: list[dict[str, Any]]) -> None:
        """Post a batch until it is taken, as often as allowed; the ones behind it wait meanwhile."""
        for attempt in range(ATTEMPTS):
            settings = self.settings  # read anew: whoever moves the webhook does not wait for the old URL
            if settings is None:
                break
            if settings.reorder:
                random.shuffle(batch)
            if self._post(batch, settings):
                with self._changed:
                    self._posted += len(batch)
                return
            with self._changed:
                self._failed += 1
                if attempt + 1 == ATTEMPTS:
                    break
                if self._changed.wait_for(lambda: self._stopped, timeout=0.5 * 2**attempt):
                    return
        with self._changed:
            self._lost += len(batch)

    def _post(self, batch: list[dict[str, Any]], settings: WebhookSettings) -> bool:
        # Each try has its own event ids, so that a receiver that tells doubles by them is found out.
        body = json.dumps([{**event, "sg_event_id": secrets.token_urlsafe(16)} for event in batch]).encode()
        headers = {"Content-Type": "application/json", "User-Agent": "SendGrid Event API"}
        if settings.private_key:
            timestamp = str(int(time.time()))
            headers["X-Twilio-Email-Event-Webhook-Timestamp"] = timestamp
            headers["X-Twilio-Email-Event-Webhook-Signature"] = sign(
                content=timestamp.encode() + body, private_key=settings.private_key
            )
        request = urllib.request.Request(settings.url, body, headers, method="POST")  # noqa: S310 - checked above
        try:
            with _OPENER.open(request, timeout=TIMEOUT) as response:
                return 200 <= int(response.status) < 300
        except (OSError, http.client.HTTPException):  # refused, reset, timed out, or an HTTP error status
            return False


def sign(*, content: bytes, private_key: str) -> str:
    """This function will sign as SendGrid does: ECDSA over SHA-256, in base64."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    return base64.b64encode(_load_key(private_key).sign(content, ec.ECDSA(hashes.SHA256()))).decode()


def _load_key(text: str) -> Any:
    """An elliptic curve key; imported late, because few runs sign and the import takes a while."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    if "-----BEGIN" in text:
        key = serialization.load_pem_private_key(text.encode(), password=None)
    else:
        key = serialization.load_der_private_key(base64.b64decode(text), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("private_key must be an elliptic curve key")
    return key
