"""Post event webhooks as the providers do: signed if a key is set, and again after an answer that is not 2xx.

Each provider's dialect makes the body and the headers of its posts.
"""

from __future__ import annotations

import heapq
import http.client
import itertools
import math
import random
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from local.sandbox.mails import Mail
from notifications.providers.dialect import Dialect, Event, Post

MAX_WAITING = 200_000  # events; further ones count as lost
MAX_BATCH = 500  # events
ATTEMPTS = 8  # the waits between them double from half a second: about a minute in all
TIMEOUT_SECONDS = 5.0  # seconds
LATE_SECONDS = 5.0  # after the acceptance; the notifications of later posts are remembered
PAUSE_SECONDS = 0.5  # seconds between two batches: real providers gather events, too
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # ignores the environment's proxies
#: outcome of a recipient -> the events of its mail
_OUTCOMES: dict[str, tuple[str, ...]] = {
    "delivered": ("processed", "delivered"),
    "bounce": ("processed", "bounce"),
    "blocked": ("processed", "blocked"),
    "dropped": ("dropped",),
    "deferred": ("processed", "deferred"),
    "spamreport": ("processed", "delivered", "spamreport"),
}
_FIRST = {kinds[0] for kinds in _OUTCOMES.values()}
_KNOWN_EVENTS = frozenset(_OUTCOMES) | {"processed"}


class InvalidWebhookSettings(ValueError):
    """A setting has a wrong value. The text says which."""


@dataclass(frozen=True)
class WebhookSettings:
    """The posted events and their URL.

    url          the URL to which each provider adds its name, such as http://127.0.0.1:8000/webhooks
    events       the kinds of events that are posted
    delay        seconds from the acceptance to the posts of all events of a mail
    probability  the probability that an event is posted
    repeat       how many times each event is posted
    reorder      if true, events wait up to twice the delay and are shuffled within a batch
    recipients   regular expression → bounce, blocked, dropped, deferred or spamreport; others are delivered
    keys         provider → the key that signs its posts
    """

    url: str
    events: tuple[str, ...] = tuple(sorted(_KNOWN_EVENTS))
    delay: float = 0.2
    probability: float = 1.0
    repeat: int = 1
    reorder: bool = False
    recipients: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)

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
        if not all(isinstance(part, str) for pair in self.keys.items() for part in pair):
            raise ValueError("keys must be an object of texts")

    def events_for(self, recipient: str) -> list[str]:
        """Return the kinds of events of a mail to this recipient, in order."""
        told = (outcome for pattern, outcome in self.recipients.items() if re.search(pattern, recipient))
        return [event for event in _OUTCOMES[next(told, "delivered")] if event in self.events]


class Webhooks:
    """The waiting events, and the thread that posts them. `settings` may be changed at any time."""

    def __init__(self, *, dialects: Mapping[str, Dialect]) -> None:
        self.settings: WebhookSettings | None = None
        self._dialects = dialects
        self._changed = threading.Condition()
        self._order = itertools.count()
        self._waiting: list[tuple[float, int, str, Event]] = []  # due, order, provider
        self._stopped = False
        self._posted = self._failed = self._lost = 0
        self._late: dict[str, float] = {}
        self._thread = threading.Thread(target=self._run, name="sandbox-webhooks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after the post in flight. Events that still wait are not posted."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(TIMEOUT_SECONDS)

    def stats(self) -> dict[str, int]:
        """Return counts: posted events, failed posts, lost events and waiting events."""
        with self._changed:
            return {
                "posted": self._posted,
                "failed_posts": self._failed,
                "lost": self._lost,
                "waiting": len(self._waiting),
            }

    def late(self) -> dict[str, float]:
        """Return after how many seconds a notification's first event was taken, if after `LATE_SECONDS`.

        It is infinite if no event was taken.
        """
        with self._changed:
            return dict(self._late)

    def _note_late(self, events: Iterable[Event], *, at: float) -> None:
        for event in events:
            if event.kind in _FIRST and at - event.happened_at > LATE_SECONDS:
                id = event.custom_args.get("notification_id", "")
                self._late[id] = min(at - event.happened_at, self._late.get(id, math.inf))

    def mail_accepted(self, *, mail: Mail) -> None:
        """Schedule the events of an accepted mail."""
        settings = self.settings
        if settings is None:
            return
        header = next((v for name, v in mail.headers.items() if name.lower() == "message-id"), "")
        now = time.time()
        with self._changed:
            for recipient in mail.recipients:
                for kind in settings.events_for(recipient):
                    if random.random() >= settings.probability:  # noqa: S311 - dice
                        continue
                    event = Event(kind, mail.message_id, recipient, now, mail.custom_args, header)
                    for _ in range(settings.repeat):
                        extra_wait = random.uniform(0, settings.delay) if settings.reorder else 0  # noqa: S311
                        self._push(now + settings.delay + extra_wait, mail.provider, event)
            self._changed.notify_all()

    def _push(self, due: float, provider: str, event: Event) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._lost += 1
        else:
            heapq.heappush(self._waiting, (due, next(self._order), provider, event))

    def _run(self) -> None:
        while batch := self._next_batch():
            by_provider: dict[str, list[Event]] = {}
            for provider, event in batch:
                by_provider.setdefault(provider, []).append(event)
            for provider, events in by_provider.items():
                self._deliver(provider, events)
            with self._changed:
                self._changed.wait_for(lambda: self._stopped, timeout=PAUSE_SECONDS)

    def _next_batch(self) -> list[tuple[str, Event]]:
        """Wait until events are due, and return them. Return an empty list if the sandbox stops."""
        with self._changed:
            while not self._stopped:
                wait = self._waiting[0][0] - time.time() if self._waiting else None
                if wait is not None and wait <= 0:
                    batch: list[tuple[str, Event]] = []
                    while self._waiting and self._waiting[0][0] <= time.time() and len(batch) < MAX_BATCH:
                        batch.append(heapq.heappop(self._waiting)[2:])
                    return batch
                self._changed.wait(wait)
            return []

    def _deliver(self, provider: str, events: list[Event]) -> None:
        """Post events until they are accepted, at most `ATTEMPTS` times. Later events wait meanwhile."""
        for attempt in range(ATTEMPTS):
            settings = self.settings  # read each time: the URL may have changed
            if settings is None:
                break
            if settings.reorder:
                random.shuffle(events)
            if self._post(provider, events, settings):
                with self._changed:
                    self._posted += len(events)
                    self._note_late(events, at=time.time())
                return
            with self._changed:
                self._failed += 1
                if attempt + 1 == ATTEMPTS:
                    break
                if self._changed.wait_for(lambda: self._stopped, timeout=0.5 * 2**attempt):
                    return
        with self._changed:
            self._lost += len(events)
            self._note_late(events, at=math.inf)

    def _post(self, provider: str, events: list[Event], settings: WebhookSettings) -> bool:
        try:
            posts = self._dialects[provider].posts(events, key=settings.keys.get(provider, ""))
        except ValueError:  # a key that cannot sign
            return False
        # A list: each is posted even if another fails.
        taken = [_is_taken(post, url=f"{settings.url}/{provider}") for post in posts]
        return all(taken)


def _is_taken(post: Post, *, url: str) -> bool:
    request = urllib.request.Request(url, post.body, dict(post.headers), method="POST")  # noqa: S310 - checked
    try:
        with _OPENER.open(request, timeout=TIMEOUT_SECONDS) as response:
            return 200 <= int(response.status) < 300
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except (OSError, http.client.HTTPException):  # refused, reset, or timed out
        return False
