"""The metrics of e-mails: the counters of this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from django.conf import settings

from notifications.states.outcomes import NOT_ACCEPTED, Verdict
from notifications.states.transitions import Status
from runtime.telemetry.metrics import counter, histogram

if TYPE_CHECKING:
    from notifications.models import EventTimes

#: The columns of a provider's reports.
REPORTED = ("delivered_at", "bounced_at", "complained_at")
#: Seconds from the order's change to `sent`: milliseconds when all is well, a day after an outage.
DELAYS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)

CREATED = counter("orderpost_emails_created", "e-mails written", ["event_type"])
CHANGES = counter(
    "orderpost_email_changes",
    "changes of e-mails to this state",
    ["event_type", "status"],
)
ATTEMPTS = counter(
    "orderpost_email_attempts",
    "attempts: `accepted`, `permanent`, `transient`, `unreachable`, `ambiguous`, `throttled`,"
    " `misconfigured`, `sender_refused`",
    ["provider", "outcome"],
)
SENDS = histogram(
    "orderpost_email_send_duration_seconds",
    "time of an attempt",
    ["provider"],
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
COMMIT_TO_SENT = histogram(
    "orderpost_email_commit_to_sent_seconds",
    "from the change to `sent`, by two hosts' clocks; without resends",
    buckets=DELAYS,
)
RETRIES = histogram(
    "orderpost_email_retries_used",
    "counted failures before `sent`",
    buckets=(0, 1, 2, 3, 5, 10),
)
FEEDBACK = counter(
    "orderpost_email_feedback",
    "first reports of `delivered`, `bounced` or `complained`",
    ["provider", "event"],
)
UNMATCHED = counter(
    "orderpost_webhook_events_unmatched",
    "events of providers that are about no e-mail of ours, such as those of newsletters on the same account",
    ["provider"],
)
WEBHOOKS = counter(
    "orderpost_webhooks",
    "posts to `/webhooks/<provider>`: `accepted`, `unsigned`, `malformed`, `too_large`, `unverifiable`,"
    " `error`",
    ["provider", "result"],
)


def show_zeros() -> None:
    """Export the counters that alerts watch with 0: Prometheus sees no increase in a series' first value."""
    for provider in settings.EMAIL_PROVIDERS:
        for outcome in (*NOT_ACCEPTED, Verdict.ACCEPTED, Verdict.PERMANENT, Verdict.AMBIGUOUS):
            ATTEMPTS.labels(provider, str(outcome))
        for event in ("delivered", "bounced", "complained"):
            FEEDBACK.labels(provider, event)
        UNMATCHED.labels(provider)
        for result in ("accepted", "unsigned", "malformed", "too_large", "unverifiable", "error"):
            WEBHOOKS.labels(provider, result)
    for event_type in settings.NOTIFY_ON:
        for status in (Status.SENT, Status.DEAD_LETTERED):
            CHANGES.labels(event_type, str(status))


def newly_reported(times: EventTimes, stored: EventTimes) -> Iterator[str]:
    """Yield the kinds of event that a provider reports first now, after the `stored` ones."""
    for column in REPORTED:
        if getattr(stored, column) is None and getattr(times, column) is not None:
            yield column.removesuffix("_at")


show_zeros()
