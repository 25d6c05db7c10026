"""The conditions of the sender: providers that accept no e-mails, Valkey, and the poll."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from django.conf import settings

from outbox.drain import POLL
from outbox.gate.breaker import State
from runtime.conditions import HEARTBEATS, Condition, Reading, Source, register

#: By provider: the breaker's state, and the state forced by a person.
Providers = Mapping[str, tuple[State, str | None]]
#: None if Valkey does not answer.
PROVIDERS: Source[Providers | None] = Source(name="providers")


def _takes_mail(providers: Providers) -> bool:
    return any(state is State.CLOSED for state, _ in providers.values())


def _failing(providers: Providers | None) -> Iterator[Reading]:
    """Count the open breakers that no person forced, while another provider accepts e-mails."""
    known = providers or {}
    for name, (state, forced) in known.items():
        yield Reading(_takes_mail(known) and state is State.OPEN and not forced, name)


VALKEY_DOWN = Condition(
    code="BrokerDown",
    place=20,
    source=PROVIDERS,
    readings=lambda providers: [Reading(providers is None, "redis")],
    sentence="Valkey does not answer: start it again; the standby sends meanwhile",
)
PROVIDERS_DOWN = Condition(
    code="EmailProvidersDown",
    place=30,
    source=PROVIDERS,
    readings=lambda providers: [Reading(bool(providers) and not _takes_mail(providers or {}))],
    sentence="no provider accepts e-mails: the reason is below; no e-mail is lost",
)
PROVIDER_DOWN = Condition(
    code="EmailProviderDown",
    place=40,
    source=PROVIDERS,
    readings=_failing,
    sentence="{subject} accepts no e-mails, so other providers send them: the reason is below",
)
#: A poll that never ran is missing.
POLL_MISSING = Condition(
    code="PollMissing",
    place=50,
    source=HEARTBEATS,
    readings=lambda beats: [Reading(beats.get(POLL, math.inf))],
    limit=lambda _: max(180.0, 3 * settings.POLL_INTERVAL),
    sentence="no process polls: start worker and beat, or `manage.py drain_outbox --loop`",
)
BREAKER_FORCED = Condition(
    code="EmailBreakerForced",
    place=160,
    source=PROVIDERS,
    readings=lambda providers: [
        Reading(forced is not None, name, {"forced": forced})
        for name, (_, forced) in (providers or {}).items()
    ],
    sentence="{subject} is forced {forced}",
)
register(VALKEY_DOWN, PROVIDERS_DOWN, PROVIDER_DOWN, POLL_MISSING, BREAKER_FORCED)
