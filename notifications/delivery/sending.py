"""One attempt: hand an e-mail to the first provider that may be asked, and to the next where that is safe.

Runs in the sending threads; touches no database.
"""

from __future__ import annotations

import dataclasses
import time

import structlog
from django.conf import settings

from notifications import metrics
from notifications.delivery.log import ids_of
from notifications.delivery.process import Process, spare
from notifications.models import EmailNotification
from notifications.providers.sending import PROVIDERS
from outbox.core import tracing
from outbox.core.tracing import Kind
from outbox.delivery.attempts import last_doubt
from outbox.delivery.gate import Entry
from outbox.delivery.outcomes import NOT_ACCEPTED, Outcome, Verdict

log = structlog.get_logger(__name__)

#: How long everyone keeps away from a provider that asks for a pause and does not say how long.
PAUSE_SECONDS = 30.0
#: A send waits at most so long for its slot; its claim is given back otherwise.
SLOT_SECONDS = 5.0
#: A provider with idempotency keys is asked again so soon after an ambiguous attempt.
REPEAT_SECONDS = 1.0


def send(process: Process, mail: EmailNotification) -> Outcome:
    """Hand `mail` to the first provider that may be asked; errors are outcomes.

    What was certainly not accepted goes to the next provider at once. What may have been accepted does not
    before its hold is over, but a provider with idempotency keys is asked again with the same key.
    """
    asked: list[str] = [""]
    answers: list[Outcome] = []
    pinned = pinned_to(mail)
    while time.monotonic() <= mail.deadline:
        entry = process.gate.enter(
            patience=spare(SLOT_SECONDS), only=pinned, without=asked, untried=is_untried(mail)
        )
        if not entry.provider:
            if not answers and pinned:  # others may be asked, so the drain does not pause for this row
                return Outcome(Verdict.RETURNED, wait=max(1.0, entry.wait))
            break
        if entry.wait and process.stopping.wait(entry.wait):
            break
        outcome = _ask(process, entry, mail)
        answers.append(outcome)
        if outcome.verdict not in NOT_ACCEPTED or process.stopping.is_set():
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
    return dataclasses.replace(answers[-1], earlier=tuple(answers[:-1]))


def _ask(process: Process, entry: Entry, mail: EmailNotification) -> Outcome:
    """Ask one provider, and report its answer to the breakers and the neighbours."""
    links = [process.drain_span]
    with tracing.span("send", kind=Kind.CLIENT, parent=mail.traceparent, links=links) as span:
        span.set("orderpost.event_type", mail.event_type)
        began = time.monotonic()
        outcome = PROVIDERS[entry.provider].send(mail)
        seconds = time.monotonic() - began
        span.set("orderpost.provider", entry.provider)
        span.set("orderpost.notification_id", str(mail.id))
        span.set("orderpost.order_id", str(mail.order_id))
        span.set("orderpost.correlation_id", mail.correlation_id)
        span.set("orderpost.outcome", str(outcome.verdict))
        if outcome.verdict is not Verdict.ACCEPTED:
            span.set("error.type", outcome.code or str(outcome.verdict))
            span.fail(str(outcome.verdict))
    held = outcome.verdict is Verdict.AMBIGUOUS and not PROVIDERS[entry.provider].idempotent
    metrics.count_attempt(outcome, provider=entry.provider, seconds=seconds, held=held)
    outcome = dataclasses.replace(outcome, probe=entry.permit.probe)
    gate, reason = process.gate, f"{outcome.verdict} {outcome.code}".strip()
    match outcome.verdict:
        case Verdict.ACCEPTED:
            gate.accepted(entry)
        case Verdict.THROTTLED:
            gate.pause(entry, seconds=outcome.wait or PAUSE_SECONDS, reason=reason)
        case Verdict.MISCONFIGURED:
            gate.failed(entry, message=str(mail.id), reason=reason, at_once=True)
        case Verdict.TRANSIENT | Verdict.UNREACHABLE | Verdict.AMBIGUOUS:
            gate.failed(entry, message=str(mail.id), reason=reason)
    if is_untried(mail) and outcome.verdict not in (Verdict.PERMANENT, Verdict.THROTTLED):
        process.neighbours.record(
            provider=entry.provider,
            id=mail.id,
            accepted=outcome.verdict is Verdict.ACCEPTED,
            at=time.monotonic(),
        )
    if outcome.verdict is Verdict.AMBIGUOUS and PROVIDERS[entry.provider].idempotent:
        return dataclasses.replace(outcome, wait=REPEAT_SECONDS)  # the same key cannot double it
    return outcome


def is_untried(mail: EmailNotification) -> bool:
    """Return whether this is a first attempt: none is recorded, and nobody asked for a new round."""
    return not mail.errors and mail.resent_at is None


def pinned_to(mail: EmailNotification) -> str | None:
    """Return the provider that may have this mail already, and would know it again by its key."""
    doubt = last_doubt(mail.errors, mail.resent_at)
    name = (doubt.provider or mail.provider) if doubt else ""
    if name not in settings.EMAIL_PROVIDERS:
        return None
    return name if PROVIDERS[name].idempotent else None
