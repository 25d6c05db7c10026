"""The conditions of the sender: providers that accept no e-mails, Valkey, the poll, and change data capture.

Web processes read the breakers and the lag of change data capture at each scrape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from django.conf import settings
from prometheus_client.core import GaugeMetricFamily

from events.conditions import show_lags
from events.transports import Lag
from outbox import cdc
from outbox.drain import POLL
from outbox.gate.breaker import BreakerState
from outbox.gate.shared_gate import read_breakers
from runtime.conditions import (
    HEARTBEATS,
    Alert,
    Condition,
    Facts,
    Measurement,
    Source,
    families,
    register,
    show,
)
from runtime.telemetry.metrics import from_broker, gauge

#: By provider: the breaker's state, and the state forced by a person.
Providers = Mapping[str, tuple[BreakerState, str | None]]
#: None if Valkey does not answer.
PROVIDERS: Source[Providers | None] = Source(name="providers")
CDC_LAGS: Source[Sequence[Lag]] = Source(name="lags of change data capture", is_optional=True)


def _takes_email(providers: Providers) -> bool:
    return any(state is BreakerState.CLOSED for state, _ in providers.values())


def _failing(providers: Providers | None) -> Iterator[Measurement]:
    """Count the open breakers that no person forced, while another provider accepts e-mails."""
    takes_email = _takes_email(providers or {})
    for name, (state, forced) in (providers or {}).items():
        yield Measurement(takes_email and state is BreakerState.OPEN and not forced, name)


VALKEY_DOWN = Condition(
    code="BrokerDown",
    place=20,
    source=PROVIDERS,
    measure=lambda providers: [Measurement(providers is None, "redis")],
    sentence="Valkey does not answer",
    do="start it again; the standby sends meanwhile",
    alert=None,
)
PROVIDERS_DOWN = Condition(
    code="EmailProvidersDown",
    place=30,
    source=PROVIDERS,
    measure=lambda providers: [Measurement(bool(providers) and not _takes_email(providers or {}))],
    sentence="no provider accepts e-mails",
    do="read the reason under Providers; no e-mail is lost",
    alert=Alert(
        "P1",
        "5m",
        "Every provider's circuit breaker is open or paused while e-mails wait.",
        also='sum(max by (status) (orderpost_unfinished{status!="dead_lettered"})) > 0',
    ),
)
PROVIDER_DOWN = Condition(
    code="EmailProviderDown",
    place=40,
    source=PROVIDERS,
    measure=_failing,
    sentence="{subject} accepts no e-mails, so other providers send them",
    do="read the reason under Providers",
    alert=Alert("P3", "15m", "One provider's breaker has been open for 15 minutes, and others send."),
)
#: A poll that never ran is missing.
POLL_MISSING = Condition(
    code="PollMissing",
    place=50,
    source=HEARTBEATS,
    measure=lambda beats: [Measurement(beats.get(POLL, math.inf))],
    limit=lambda _: max(180.0, 3 * settings.POLL_INTERVAL),
    sentence="no process polls",
    do="start worker and beat, or `manage.py drain_outbox --loop`",
    alert=Alert(
        "P2",
        "1m",
        "Neither a worker nor a standby has polled for three minutes, or three times `POLL_INTERVAL`.",
    ),
)
CDC_LAG = Condition(
    code="CdcLag",
    place=155,
    source=CDC_LAGS,
    measure=lambda lags: [Measurement(lag.seconds, lag.topic) for lag in lags],
    limit=60,
    sentence="row changes of {subject} have waited for more than a minute",
    do="check `consume_cdc`",
    alert=Alert("P2", "1m", "A row that Debezium reported has waited at Kafka for a minute."),
)
BREAKER_FORCED = Condition(
    code="EmailBreakerForced",
    place=160,
    source=PROVIDERS,
    measure=lambda providers: [
        Measurement(forced is not None, name, {"forced": forced})
        for name, (_, forced) in (providers or {}).items()
    ],
    sentence="{subject} is forced {forced}",
    do="lift the override under Providers when its reason is gone",
    alert=Alert("P3", "10m", "A breaker is forced open or closed."),
)
register(VALKEY_DOWN, PROVIDERS_DOWN, PROVIDER_DOWN, POLL_MISSING, CDC_LAG, BREAKER_FORCED)

show_lags(CDC_LAGS, group=cdc.GROUP)
show(
    gauge("orderpost_breaker_state", "1 for one of `closed`, `open`, `paused`", ["provider", "state"]),
    PROVIDERS,
    lambda providers: {
        (name, breaker_state.value): state is breaker_state
        for name, (state, _) in (providers or {}).items()
        for breaker_state in BreakerState
    },
)
show(
    gauge("orderpost_breaker_forced", "1 if forced `open` or `closed`", ["provider", "to"]),
    PROVIDERS,
    lambda providers: {
        (name, to): forced == to
        for name, (_, forced) in (providers or {}).items()
        for to in ("open", "closed")
    },
)


@from_broker("kafka", is_used=cdc.is_used)
def lag_of_cdc() -> Iterator[GaugeMetricFamily]:
    return families(Facts({CDC_LAGS: cdc.read_cdc_lags()}))


@from_broker("redis")
def breakers() -> Iterator[GaugeMetricFamily]:
    now, breakers = read_breakers(settings.EMAIL_PROVIDERS)
    states = {name: (breaker.state(now), breaker.forced) for name, breaker in breakers.items()}
    return families(Facts({PROVIDERS: states}))
