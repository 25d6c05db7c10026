"""One attempt: hand an e-mail to the first provider that may be asked, and to the next if that is safe.

Runs in the sending threads. Does not use the database.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence

import structlog
from django.conf import settings
from opentelemetry.trace import Span, SpanKind, StatusCode

from notifications import metrics
from notifications.log import ids_of
from notifications.models import EmailNotification
from notifications.providers.base import sender_of
from notifications.providers.sending import PROVIDERS
from notifications.states.attempts import find_doubts
from notifications.states.outcomes import NOT_ACCEPTED, Outcome, Verdict
from outbox.gate.gate import Gate, ProviderChoice
from outbox.gate.neighbours import Neighbours
from runtime.telemetry import tracing

log = structlog.get_logger(__name__)

#: The pause of a provider that asks for one without saying how long, for all processes.
PAUSE_SECONDS = 30.0
#: The longest wait of a send for its slot. After it the claim is given back.
SLOT_SECONDS = 5.0


def send(
    mail: EmailNotification,
    *,
    gate: Gate,
    neighbours: Neighbours,
    pause: Callable[[float], bool],
    span: Span,
) -> Outcome:
    """Hand `mail` to the first provider that may be asked, and return the outcome. Errors are outcomes.

    Ask no provider that refuses the e-mail's sender. If a provider certainly did not accept the e-mail,
    ask the next provider at once. If a provider may have accepted it, ask no other before the hold is over,
    but ask a provider with idempotency keys a second time. After the hold, ask the providers that may have
    accepted it last. Otherwise an outage with ambiguous answers would hold the e-mail again and again.

    `pause` sleeps for a number of seconds, and returns true if the process stops. `span` is the drain's.
    """
    asked: list[str] = [""]
    answers: list[Outcome] = []
    who = {"profile": mail.profile, "sender": sender_of(mail)}
    waits = gate.senders.stopped_at(gate.providers, **who)
    asked += waits
    doubted = [doubt.provider for doubt in reversed(find_doubts(mail.errors, mail.resent_at))]
    last = list(dict.fromkeys(doubted))[::-1]  # the provider of the newest doubt at the end

    ask = functools.partial(_ask, mail, gate=gate, last=last, pause=pause, drain_span=span)
    while outcome := ask(without=asked):
        if outcome.verdict is Verdict.AMBIGUOUS and PROVIDERS[outcome.provider].is_idempotent:
            again = ask(only=outcome.provider)  # with the same key, so that the mail is not sent twice
            if again and again.verdict is Verdict.ACCEPTED:
                outcome = again  # any other answer proves nothing about the first request
        if outcome.verdict is Verdict.SENDER_REFUSED:
            refused_for = gate.senders.refused(outcome.provider, **who, reason=outcome.error)
            outcome = dataclasses.replace(outcome, wait_seconds=refused_for)
        elif outcome.verdict is Verdict.ACCEPTED:
            gate.senders.accepted(outcome.provider, **who)
        _record(mail, outcome, neighbours)
        answers.append(outcome)
        if outcome.verdict not in NOT_ACCEPTED:
            break
        asked.append(outcome.provider)
        log.warning(
            "provider did not take a mail",
            **ids_of(mail),
            provider=outcome.provider,
            outcome=str(outcome.verdict),
            error=outcome.error,
        )
    if not answers:
        # Without a wait, the next claim would take the same row at once.
        wait = _shortest(waits, gate) if waits and mail.is_sendable() else None
        return Outcome(Verdict.RETURNED, wait_seconds=wait)
    outcome = answers[-1]
    if outcome.wait_seconds is not None:
        waits |= {one.provider: one.wait_seconds for one in answers if one.wait_seconds is not None}
        outcome = dataclasses.replace(outcome, wait_seconds=_shortest(waits, gate))
    return dataclasses.replace(outcome, earlier=tuple(answers[:-1]))


def _shortest(waits: Mapping[str, float], gate: Gate) -> float:
    """Return the shortest wait of all providers, because any of them may take the e-mail next."""
    return min(waits.get(name, PAUSE_SECONDS) for name in gate.providers)


def _record(mail: EmailNotification, outcome: Outcome, neighbours: Neighbours) -> None:
    """Let a first attempt judge the failures of other e-mails."""
    about_others = outcome.verdict in (Verdict.PERMANENT, Verdict.THROTTLED, Verdict.SENDER_REFUSED)
    if is_untried(mail) and not about_others:
        neighbours.record(
            provider=outcome.provider,
            id=mail.id,
            is_accepted=outcome.verdict is Verdict.ACCEPTED,
            ended_at=time.monotonic(),
        )


def _ask(
    mail: EmailNotification,
    *,
    gate: Gate,
    last: Sequence[str],
    pause: Callable[[float], bool],
    drain_span: Span,
    only: str | None = None,
    without: Sequence[str] = (),
) -> Outcome | None:
    """Ask the first provider that may be asked, and return its answer. Return None if none may be asked."""
    if not mail.is_sendable():
        return None
    choice = gate.enter(
        patience_seconds=fit_into_lease(SLOT_SECONDS),
        only=only,
        without=without,
        last=last,
        is_untried=is_untried(mail),
        pause=pause,
    )
    if mail.should_stop() or not choice.provider:
        return None
    outcome = _call(mail, choice, gate=gate, drain_span=drain_span)
    return None if outcome.verdict is Verdict.RETURNED else outcome  # it stops, and the mail was not sent


def _call(mail: EmailNotification, choice: ProviderChoice, *, gate: Gate, drain_span: Span) -> Outcome:
    """Call one provider, and report its answer to the breakers."""
    links = [tracing.traceparent_of(drain_span)]
    with tracing.span("send", kind=SpanKind.CLIENT, parent=mail.traceparent, links=links) as span:
        span.set_attribute("orderpost.event_type", mail.event_type)
        began = time.monotonic()
        outcome = PROVIDERS[choice.provider].send(mail)
        seconds = time.monotonic() - began
        span.set_attribute("orderpost.provider", choice.provider)
        span.set_attribute("orderpost.notification_id", str(mail.id))
        span.set_attribute("orderpost.order_id", str(mail.order_id))
        span.set_attribute("orderpost.correlation_id", mail.correlation_id)
        span.set_attribute("orderpost.outcome", str(outcome.verdict))
        if outcome.verdict is not Verdict.ACCEPTED:
            span.set_attribute("error.type", outcome.code or str(outcome.verdict))
            span.set_status(StatusCode.ERROR, str(outcome.verdict))
    if outcome.verdict is Verdict.RETURNED:
        return outcome  # the provider did not fail, so do not report it to the breaker
    metrics.count_attempt(outcome, provider=choice.provider, seconds=seconds)
    outcome = dataclasses.replace(outcome, is_probe=choice.is_probe)
    reason = f"{outcome.verdict} {outcome.code}".strip()
    match outcome.verdict:
        case Verdict.ACCEPTED:
            gate.accepted(choice)
        case Verdict.THROTTLED:
            gate.pause(choice, seconds=outcome.wait_seconds or PAUSE_SECONDS, reason=reason)
        case Verdict.MISCONFIGURED:
            gate.failed(choice, message=str(mail.id), reason=reason, at_once=True)
        case Verdict.TRANSIENT | Verdict.UNREACHABLE | Verdict.AMBIGUOUS:
            gate.failed(choice, message=str(mail.id), reason=reason)
    return outcome


def compute_send_timeout() -> float:
    """Return the longest duration of one send in seconds, with its waits for slots."""
    longest = settings.EMAIL_CONNECT_TIMEOUT + settings.EMAIL_READ_TIMEOUT + fit_into_lease(SLOT_SECONDS)
    names = settings.EMAIL_PROVIDERS
    asked = len(names) + any(PROVIDERS[name].is_idempotent for name in names)  # which is asked twice
    return float(min(longest * asked, settings.LEASE_SECONDS * 0.9))


def fit_into_lease(seconds: float) -> float:
    """Return `seconds`, or less if the lease is short: a send and its waits must fit into the lease."""
    left = settings.LEASE_SECONDS - settings.EMAIL_CONNECT_TIMEOUT - settings.EMAIL_READ_TIMEOUT
    return float(min(seconds, left / 4))


def is_untried(mail: EmailNotification) -> bool:
    """Return whether this is a first attempt: no error is recorded, and nobody has resent the e-mail."""
    return not mail.errors and mail.resent_at is None
