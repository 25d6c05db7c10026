"""One attempt: hand an e-mail to the first provider that may be asked, and to the next if that is safe.

Runs in the sending threads. Does not use the database.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

import structlog
from django.conf import settings
from opentelemetry.trace import Span, SpanKind, StatusCode

from notifications import metrics
from notifications.delivery.log import ids_of
from notifications.models import EmailNotification
from notifications.providers.sending import PROVIDERS
from outbox.delivery.gate.gate import Admission, Gate
from outbox.delivery.gate.neighbours import Neighbours
from outbox.delivery.rows.attempts import Doubt, find_doubts, last_doubt
from outbox.delivery.rows.outcomes import NOT_ACCEPTED, Outcome, Verdict
from outbox.telemetry import tracing

log = structlog.get_logger(__name__)

#: The pause of a provider that asks for one without saying how long, for all processes.
PAUSE_SECONDS = 30.0
#: The longest wait of a send for its slot. After it the claim is given back.
SLOT_SECONDS = 5.0
#: Seconds from each ambiguous answer of a provider with idempotency keys until it is asked again. Then a hold
#: begins. Their sum is short, because another provider may be asked only after the repeats and the hold.
REPEATS = (1.0, 2.0, 4.0)


def send(
    mail: EmailNotification,
    *,
    gate: Gate,
    neighbours: Neighbours,
    pause: Callable[[float], bool],
    span: Span,
) -> Outcome:
    """Hand `mail` to the first provider that may be asked, and return the outcome. Errors are outcomes.

    `pause` sleeps for a number of seconds, and returns true if the process stops. `span` is the drain's.

    If a provider certainly did not accept it, ask the next provider at once. If a provider may have accepted
    it, ask no other before the hold is over; a provider with idempotency keys is asked again with the same
    key. After the hold, ask the providers that may have accepted it last. Otherwise an outage with ambiguous
    answers would hold the e-mail again and again.
    """
    asked: list[str] = [""]
    answers: list[Outcome] = []
    pinned = pinned_to(mail)
    doubted = [doubt.provider for doubt in reversed(find_doubts(mail.errors, mail.resent_at))]
    last = list(dict.fromkeys(doubted))[::-1]  # the provider of the newest doubt at the end
    while mail.is_sendable():
        entry = gate.enter(
            patience_seconds=fit_into_lease(SLOT_SECONDS),
            only=pinned,
            without=asked,
            last=last,
            is_untried=is_untried(mail),
            pause=pause,
        )
        if mail.should_stop():
            break
        if not entry.provider:
            if not answers and pinned:  # other rows may be sent elsewhere, so the drain must not pause
                return Outcome(
                    Verdict.RETURNED, wait_seconds=max(1.0, min(entry.wait_seconds, compute_pin_left(mail)))
                )
            break
        outcome = _ask(mail, entry, gate=gate, neighbours=neighbours, drain_span=span)
        if outcome.verdict is Verdict.RETURNED:  # the process is stopping, and the message was not sent
            break
        answers.append(outcome)
        if outcome.verdict not in NOT_ACCEPTED:
            break
        asked.append(entry.provider)
        log.warning(
            "provider did not take a mail",
            **ids_of(mail),
            provider=entry.provider,
            outcome=str(outcome.verdict),
            error=outcome.error,
        )
    if not answers:
        return Outcome(Verdict.RETURNED)
    longest = math.inf
    if pinned and answers[-1].verdict in NOT_ACCEPTED:
        # Other providers may be asked after the pin, so do not wait longer for this one's backoff or pause.
        longest = max(1.0, compute_pin_left(mail))
    return dataclasses.replace(answers[-1], longest_wait_seconds=longest, earlier=tuple(answers[:-1]))


def _ask(
    mail: EmailNotification, entry: Admission, *, gate: Gate, neighbours: Neighbours, drain_span: Span
) -> Outcome:
    """Ask one provider, and report its answer to the breakers and the neighbours."""
    links = [tracing.traceparent_of(drain_span)]
    with tracing.span("send", kind=SpanKind.CLIENT, parent=mail.traceparent, links=links) as span:
        span.set_attribute("orderpost.event_type", mail.event_type)
        began = time.monotonic()
        outcome = PROVIDERS[entry.provider].send(mail)
        seconds = time.monotonic() - began
        span.set_attribute("orderpost.provider", entry.provider)
        span.set_attribute("orderpost.notification_id", str(mail.id))
        span.set_attribute("orderpost.order_id", str(mail.order_id))
        span.set_attribute("orderpost.correlation_id", mail.correlation_id)
        span.set_attribute("orderpost.outcome", str(outcome.verdict))
        if outcome.verdict is not Verdict.ACCEPTED:
            span.set_attribute("error.type", outcome.code or str(outcome.verdict))
            span.set_status(StatusCode.ERROR, str(outcome.verdict))
    if outcome.verdict is Verdict.RETURNED:
        return outcome  # the provider did not fail, so do not report it to the breaker or the neighbours
    ambiguous = outcome.verdict is Verdict.AMBIGUOUS
    repeat = repeat_in(mail, entry.provider) if ambiguous else None
    metrics.count_attempt(outcome, provider=entry.provider, seconds=seconds)
    outcome = dataclasses.replace(
        outcome, is_probe=entry.permit.is_probe, wait_seconds=repeat if ambiguous else outcome.wait_seconds
    )
    reason = f"{outcome.verdict} {outcome.code}".strip()
    match outcome.verdict:
        case Verdict.ACCEPTED:
            gate.accepted(entry)
        case Verdict.THROTTLED:
            gate.pause(entry, seconds=outcome.wait_seconds or PAUSE_SECONDS, reason=reason)
        case Verdict.MISCONFIGURED:
            gate.failed(entry, message=str(mail.id), reason=reason, at_once=True)
        case Verdict.TRANSIENT | Verdict.UNREACHABLE | Verdict.AMBIGUOUS:
            gate.failed(entry, message=str(mail.id), reason=reason)
    if is_untried(mail) and outcome.verdict not in (Verdict.PERMANENT, Verdict.THROTTLED):
        neighbours.record(
            provider=entry.provider,
            id=mail.id,
            is_accepted=outcome.verdict is Verdict.ACCEPTED,
            ended_at=time.monotonic(),
        )
    return outcome


def compute_send_timeout() -> float:
    """Return the longest duration of one send in seconds, with its waits for slots."""
    longest = settings.EMAIL_CONNECT_TIMEOUT + settings.EMAIL_READ_TIMEOUT + fit_into_lease(SLOT_SECONDS)
    return float(min(longest * len(settings.EMAIL_PROVIDERS), settings.LEASE_SECONDS * 0.9))


def fit_into_lease(seconds: float) -> float:
    """Return `seconds`, or less if the lease is short: a send and its waits must fit into the lease."""
    left = settings.LEASE_SECONDS - settings.EMAIL_CONNECT_TIMEOUT - settings.EMAIL_READ_TIMEOUT
    return float(min(seconds, left / 4))


def is_untried(mail: EmailNotification) -> bool:
    """Return whether this is a first attempt: no error is recorded, and nobody has resent the e-mail."""
    return not mail.errors and mail.resent_at is None


def pinned_to(mail: EmailNotification) -> str | None:
    """Return the provider that may have accepted this e-mail and would recognise it by its idempotency key.

    Ask only this provider until the hold is over. Return None if there is none, or when the hold is over; an
    only provider stays pinned.
    """
    doubt = last_doubt(mail.errors, mail.resent_at)
    if doubt is None:
        return None
    name = doubt.provider or _only_provider()
    if name not in settings.EMAIL_PROVIDERS or not PROVIDERS[name].is_idempotent:
        return None
    return name if compute_pin_left(mail) > 0 else None


def compute_pin_left(mail: EmailNotification) -> float:
    """Return for how many seconds after the claim no other provider may be asked."""
    doubt = last_doubt(mail.errors, mail.resent_at)
    if doubt is None:
        return 0.0
    return math.inf if _only_provider() else compute_hold_left(mail, doubt)


def repeat_in(mail: EmailNotification, provider: str) -> float | None:
    """Return after how many seconds to repeat after a provider's ambiguous answer; None to begin a hold.

    Count the provider's earlier ambiguous answers of any age. A limit on their age could put off the hold for
    ever if slow answers or a backlog keep them far apart.
    """
    if not PROVIDERS[provider].is_idempotent:
        return None
    answers = sum(doubt.provider == provider for doubt in find_doubts(mail.errors, mail.resent_at))
    return (*REPEATS, None)[answers % (len(REPEATS) + 1)]


def is_repeat(provider: str, *, earlier: int) -> bool:
    """Return whether a provider's ambiguous answer was to a repeat before the hold.

    `earlier` is the number of its ambiguous answers before that one.
    """
    known = PROVIDERS.get(provider)
    return known is not None and known.is_idempotent and earlier % (len(REPEATS) + 1) > 0


def compute_hold_left(mail: EmailNotification, doubt: Doubt) -> float:
    """Return the seconds from the claim to the end of a doubt's hold; negative if the hold was over."""
    return float(settings.AMBIGUOUS_HOLD_SECONDS) - (mail.claimed_epoch - doubt.tried_at.timestamp())


def _only_provider() -> str:
    return settings.EMAIL_PROVIDERS[0] if len(settings.EMAIL_PROVIDERS) == 1 else ""
