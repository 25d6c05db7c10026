"""One attempt: hand an e-mail to the first provider that may be asked, and to the next if that is safe.

Runs in the sending threads. Does not use the database.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from collections.abc import Mapping, Sequence

import structlog
from django.conf import settings
from opentelemetry.trace import Span, SpanKind, StatusCode

from notifications import metrics
from notifications.log import ids_of
from notifications.providers.sending import PROVIDERS
from notifications.states.claimed import Claimed
from notifications.states.errors import find_doubts
from notifications.states.outcomes import NOT_ACCEPTED, Outcome, Verdict
from outbox.gate.gate import Gate, ProviderChoice
from outbox.refusals import Refusals
from runtime.personal_data import without_addresses
from runtime.telemetry import tracing

log = structlog.get_logger(__name__)

#: The pause of a provider that asks for one without saying how long, for all processes.
PAUSE_SECONDS = 30.0
#: The longest wait of a send for its slot. After it the claim is given back.
SLOT_SECONDS = 5.0
#: The most characters of an answer that a breaker keeps as its reason.
REASON_LIMIT = 200
#: The error of a provider that did not answer until the e-mail's deadline.
TOO_SLOW = "the dialogue took so long that the lease could end before the reply"


def attempt(
    email: Claimed,
    *,
    gate: Gate,
    refusals: Refusals,
    stopping: threading.Event,
    span: Span,
) -> Outcome:
    """Hand `email` to the first provider that may be asked, and return the outcome. Errors are outcomes.

    - If a provider certainly did not accept the e-mail, ask the next one at once.
    - If a provider may have accepted it, ask no other before the hold is over, but ask a provider with
      idempotency keys a second time.
    - After the hold, ask the providers that may have accepted it last. Otherwise an outage with ambiguous
      answers would hold the e-mail again and again.
    - Do not ask a provider that refuses the e-mail's sender.
    - Begin nothing after the e-mail's deadline, or once `stopping` is set.

    `span` is the drain's.
    """
    answers: list[Outcome] = []
    who = {"profile": email.profile, "sender": email.from_email}
    waits = gate.senders.stopped_at(gate.providers, **who)
    asked = [*waits]
    doubted = [doubt.provider for doubt in reversed(find_doubts(email.errors, email.resent_at))]
    last = list(dict.fromkeys(doubted))[::-1]  # the provider of the newest doubt at the end

    ask = functools.partial(
        _ask, email, gate=gate, refusals=refusals, last=last, stopping=stopping, drain_span=span
    )
    while outcome := ask(without=asked):
        if outcome.verdict is Verdict.AMBIGUOUS and PROVIDERS[outcome.provider].is_idempotent:
            again = ask(only=outcome.provider)  # with the same key, so that the e-mail is not sent twice
            if again and again.verdict is Verdict.ACCEPTED:
                outcome = again  # any other answer proves nothing about the first request
        if outcome.verdict is Verdict.SENDER_REFUSED:
            refused_for = gate.senders.refused(outcome.provider, **who, reason=outcome.error)
            outcome = dataclasses.replace(outcome, wait_seconds=refused_for)
        elif outcome.verdict is Verdict.ACCEPTED:
            gate.senders.accepted(outcome.provider, **who)
        answers.append(outcome)
        if outcome.verdict not in NOT_ACCEPTED:
            break
        asked.append(outcome.provider)
        log.warning(
            "provider did not take a mail",
            **ids_of(email),
            provider=outcome.provider,
            outcome=str(outcome.verdict),
            error=outcome.error,
        )
    if not answers:
        # Without a wait, the next claim would take the same e-mail at once.
        wait = _shortest(waits, gate) if waits and _may_continue(email, stopping) else None
        return Outcome(Verdict.RETURNED, wait_seconds=wait)
    outcome = answers[-1]
    if outcome.wait_seconds is not None:
        waits |= {
            answer.provider: answer.wait_seconds for answer in answers if answer.wait_seconds is not None
        }
        outcome = dataclasses.replace(outcome, wait_seconds=_shortest(waits, gate))
    return dataclasses.replace(outcome, earlier=tuple(answers[:-1]))


def _may_continue(email: Claimed, stopping: threading.Event) -> bool:
    return not stopping.is_set() and time.monotonic() <= email.deadline_at


def _shortest(waits: Mapping[str, float], gate: Gate) -> float:
    """Return the shortest wait of all providers: any of them may take the e-mail next."""
    return min(waits.get(name, PAUSE_SECONDS) for name in gate.providers)


def _ask(
    email: Claimed,
    *,
    gate: Gate,
    refusals: Refusals,
    last: Sequence[str],
    stopping: threading.Event,
    drain_span: Span,
    only: str | None = None,
    without: Sequence[str] = (),
) -> Outcome | None:
    """Ask the first provider that may be asked, and return its answer. Return None if none may be asked."""
    if not _may_continue(email, stopping):
        return None
    choice = gate.enter(
        patience_seconds=fit_into_lease(SLOT_SECONDS),
        only=only,
        without=without,
        last=last,
        is_untried=email.is_untried or email.is_substitute,
        pause=stopping.wait,
    )
    if stopping.is_set() or not choice.provider:
        return None
    return _call(email, choice, gate=gate, refusals=refusals, stopping=stopping, drain_span=drain_span)


def _call(
    email: Claimed,
    choice: ProviderChoice,
    *,
    gate: Gate,
    refusals: Refusals,
    stopping: threading.Event,
    drain_span: Span,
) -> Outcome | None:
    """Call one provider, and report its answer to the breakers. Return None if a stop interrupted it."""
    links = [tracing.traceparent_of(drain_span)]
    with tracing.span("send", kind=SpanKind.CLIENT, parent=email.traceparent, links=links) as span:
        span.set_attribute("orderpost.event_type", email.event_type)
        began = time.monotonic()
        outcome = PROVIDERS[choice.provider].send(
            email, account=email.account, may_continue=lambda: _may_continue(email, stopping)
        )
        seconds = time.monotonic() - began
        outcome = refusals.judge(email, outcome)
        if outcome.verdict is Verdict.RETURNED and not stopping.is_set():
            outcome = Outcome(Verdict.TRANSIENT, choice.provider, code="TimeoutError", text=TOO_SLOW)
        span.set_attribute("orderpost.provider", choice.provider)
        span.set_attribute("orderpost.notification_id", str(email.id))
        span.set_attribute("orderpost.order_id", str(email.order_id))
        span.set_attribute("orderpost.correlation_id", email.correlation_id)
        span.set_attribute("orderpost.outcome", str(outcome.verdict))
        if outcome.verdict is not Verdict.ACCEPTED:
            span.set_attribute("error.type", outcome.code or str(outcome.verdict))
            span.set_status(StatusCode.ERROR, str(outcome.verdict))
    if outcome.verdict is Verdict.RETURNED:
        return None  # the provider did not fail, so the breaker hears nothing
    metrics.ATTEMPTS.labels(choice.provider, str(outcome.verdict)).inc()
    metrics.SENDS.labels(choice.provider).observe(seconds)
    outcome = dataclasses.replace(outcome, is_probe=choice.is_probe)
    answer = f"{outcome.code} {outcome.text}".strip()
    if outcome.verdict is not Verdict.ACCEPTED:  # addresses cost a pattern
        answer = without_addresses(answer)
    reason = f"{outcome.verdict} {answer}"[:REASON_LIMIT].strip()
    match outcome.verdict:
        case Verdict.ACCEPTED:
            gate.accepted(choice)
        case Verdict.THROTTLED:
            gate.pause(choice, seconds=outcome.wait_seconds or PAUSE_SECONDS, reason=reason)
        case Verdict.MISCONFIGURED:
            gate.failed(choice, message=str(email.id), reason=reason, at_once=True)
        case Verdict.TRANSIENT | Verdict.UNREACHABLE | Verdict.AMBIGUOUS:
            gate.failed(choice, message=str(email.id), reason=reason)
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
