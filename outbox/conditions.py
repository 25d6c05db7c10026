"""The conditions of the sender: providers that accept no e-mails, Valkey, the poll, and change data capture.

Web processes read the breakers and the lag of change data capture at each scrape.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Mapping, Sequence

import redis
from django.conf import settings
from django.utils import timezone
from prometheus_client.core import GaugeMetricFamily

from events.conditions import show_lags
from events.transports import Lag
from notifications.conditions import HOW_MANY_AND_WHEN
from notifications.provider_tests import refused_beat
from notifications.providers.causes import blame
from notifications.providers.registry import declarations
from outbox import cdc
from outbox.drain import POLL, read_rules
from outbox.gate.breaker import BreakerState
from outbox.gate.gate import ProviderState, describe_providers
from outbox.gate.shared_gate import Breakers, read_breakers
from runtime.conditions import (
    HEARTBEATS,
    HOUR,
    JOBS,
    START_SECONDS,
    Alert,
    Condition,
    Counted,
    Facts,
    Measurement,
    Source,
    families,
    register,
    show,
)
from runtime.faults import ServerTrouble
from runtime.process.redis_client import explain_error
from runtime.telemetry.metrics import from_broker, gauge

Providers = Mapping[str, ProviderState]
#: None if Valkey does not answer.
PROVIDERS: Source[Providers | None] = Source(name="providers")
#: None if Valkey answers and takes what is written.
VALKEY: Source[ServerTrouble | None] = Source(name="Valkey")
#: The number of waiting e-mails, in PromQL.
_WAITING = 'sum(max by (status) (orderpost_unfinished{status!="dead_lettered"}))'
CDC_LAGS: Source[Sequence[Lag]] = Source(name="lags of change data capture", is_optional=True)


def _takes_email(providers: Providers) -> bool:
    """Return whether a provider is steady: one that fails again and again takes few."""
    return any(
        provider.state is BreakerState.CLOSED and not provider.is_flapping for provider in providers.values()
    )


def _time(epoch: float) -> dt.datetime:
    """Return a time in the zone of the page that shows it, or in UTC."""
    return timezone.localtime(dt.datetime.fromtimestamp(epoch, dt.UTC))


def explain_provider(provider: ProviderState) -> tuple[str, str]:
    """Return why a provider takes no e-mails, and what to do. Times do not move from read to read."""
    name, at = provider.provider, provider.breaker.flaps_since or provider.breaker.changed_at
    since = f" since {_time(at):%H:%M}" if at else ""
    if provider.breaker.forced:
        why = f"{name} is forced open{since} ({provider.breaker.reason})"
        return why, "lift the override under Providers"
    code, _, text = provider.error.partition(" ")
    # Where no answer came, the code is the name of a Python class, and the text says what happened.
    said = code if code.isdecimal() else text or code
    answered = f" ({said})" if said else ""
    if provider.state is BreakerState.PAUSED:
        until = _time(provider.breaker.paused_until)
        why = f"{name} asks us to wait until {until:%H:%M}{answered}"
        cure = "if it takes e-mails again earlier, press Force closed under Providers, and lift that later"
        return why, f"{cure}; compare its limit with EMAIL_RATE_LIMIT"
    check = f"check {blame(provider=name, error=provider.error)}"
    if provider.is_refusing:
        does = "refuses our account" if code.isdecimal() or not code else "cannot be used"
        return f"{name} {does}{since}{answered}", check
    again = " again and again" if provider.is_flapping else ""
    return f"{name} fails{again}{since}{answered}", f"{check}; it is tried again by itself"


def _none_takes_email(providers: Providers | None) -> Iterator[Measurement]:
    causes = [explain_provider(provider) for provider in (providers or {}).values()]
    if not causes or _takes_email(providers or {}):
        yield Measurement(0)
        return
    *earlier, (last, do) = causes
    why = "; ".join([*(f"{cause}: {cure}" for cause, cure in earlier), last])
    flaps = any(provider.is_flapping for provider in (providers or {}).values())
    effect = "few e-mails are sent" if flaps else "no e-mail is sent"
    yield Measurement(1, words={"effect": effect, "why": why, "do": do})


def _failing(providers: Providers | None) -> Iterator[Measurement]:
    """Count the open breakers that no person forced, while another provider accepts e-mails."""
    takes_email = _takes_email(providers or {})
    for name, provider in (providers or {}).items():
        is_open = provider.state is BreakerState.OPEN or provider.is_flapping
        why, do = explain_provider(provider)
        fails = is_open and not provider.breaker.forced
        yield Measurement(takes_email and fails, name, {"why": why, "do": do})


VALKEY_DOWN = Condition(
    code="BrokerDown",
    place=20,
    source=VALKEY,
    measure=lambda trouble: [Measurement(trouble is not None, "redis", trouble._asdict() if trouble else {})],
    sentence="{what}",
    do="start it again; the standby sends meanwhile",
    alert=None,
)
PROVIDERS_DOWN = Condition(
    code="EmailProvidersDown",
    place=30,
    source=PROVIDERS,
    measure=_none_takes_email,
    sentence="{effect}, because {why}",
    do="read the reason under Providers; no e-mail is lost",
    alert=Alert(
        "P1",
        "5m",
        "Every provider's circuit breaker is open or paused while e-mails wait.",
        also=f"{_WAITING} > 0",
        shows=f"{{{{ with query `{_WAITING}` }}}} Waiting e-mails: {{{{ . | first | value }}}}.{{{{ end }}}}"
        f"{HOW_MANY_AND_WHEN}",
    ),
)
PROVIDER_DOWN = Condition(
    code="EmailProviderDown",
    place=40,
    source=PROVIDERS,
    measure=_failing,
    sentence="{why}, and other providers send",
    do="read the reason under Providers",
    alert=Alert("P3", "15m", "One provider's breaker has been open for 15 minutes, and others send."),
)
#: A poll that never ran is missing, except in a start.
POLL_MISSING = Condition(
    code="PollMissing",
    place=50,
    source=JOBS,
    measure=lambda jobs: [
        Measurement(
            jobs.late_seconds(
                POLL,
                kinds=("worker", "standby"),
                never=math.inf,
                start_seconds=max(START_SECONDS, 2 * settings.POLL_INTERVAL),
            )
        )
    ],
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
    measure=lambda lags: [
        Measurement(lag.seconds, lag.topic, {"waiting": Counted(lag.events)}) for lag in lags
    ],
    limit=60,
    sentence="{waiting:row change of {subject} has|row changes of {subject} wait, and the first has}"
    " waited for more than a minute",
    do="check `consume_cdc`",
    alert=Alert("P2", "1m", "A row that Debezium reported has waited at Kafka for a minute."),
)
BREAKER_FORCED = Condition(
    code="EmailBreakerForced",
    place=160,
    source=PROVIDERS,
    measure=lambda providers: [
        Measurement(
            provider.breaker.forced is not None,
            name,
            {"forced": provider.breaker.forced, "by": provider.breaker.reason},
        )
        for name, provider in (providers or {}).items()
    ],
    sentence="{subject} is forced {forced} ({by})",
    do="lift the override under Providers when its reason is gone",
    alert=Alert("P3", "10m", "A breaker is forced open or closed."),
)
#: A post that was accepted so soon before a refused one, or later, shows that the key is right.
_ACCEPTED_WITHIN_SECONDS = 20.0


def _refused_webhooks(beats: Mapping[str, float]) -> Iterator[Measurement]:
    for name in settings.EMAIL_PROVIDERS:
        declared = declarations()[name]
        if declared.webhook:
            refused = beats.get(refused_beat(provider=name, problem="unsigned"), math.inf)
            accepted = beats.get(f"webhook:{name}", math.inf)
            is_wrong = refused < HOUR and accepted > refused + _ACCEPTED_WITHIN_SECONDS
            yield Measurement(is_wrong, name, {"key": declared.webhook_key})


WEBHOOKS_REFUSED = Condition(
    code="WebhooksRefused",
    place=57,
    source=HEARTBEATS,
    measure=_refused_webhooks,
    sentence="posts of {subject} are refused, because their signature does not fit {key}",
    do="set it to the key that the provider shows, and restart web",
    alert=Alert("P2", "5m", "A provider's posts are refused, because their signature does not fit the key."),
    page="notifications.suppression",
)
register(VALKEY_DOWN, PROVIDERS_DOWN, PROVIDER_DOWN, POLL_MISSING, CDC_LAG, BREAKER_FORCED, WEBHOOKS_REFUSED)

show_lags(CDC_LAGS, group=cdc.GROUP)
show(
    gauge("orderpost_breaker_state", "1 for one of `closed`, `open`, `paused`", ["provider", "state"]),
    PROVIDERS,
    lambda providers: {
        (name, breaker_state.value): provider.state is breaker_state
        for name, provider in (providers or {}).items()
        for breaker_state in BreakerState
    },
)
show(
    gauge("orderpost_breaker_forced", "1 if forced `open` or `closed`", ["provider", "to"]),
    PROVIDERS,
    lambda providers: {
        (name, to): provider.breaker.forced == to
        for name, provider in (providers or {}).items()
        for to in ("open", "closed")
    },
)


@from_broker("kafka", is_used=cdc.is_used)
def lag_of_cdc() -> Iterator[GaugeMetricFamily]:
    return families(Facts({CDC_LAGS: cdc.read_cdc_lags()}))


@from_broker("redis")
def breakers() -> Iterator[GaugeMetricFamily]:
    """Raise `redis.RedisError` also if Valkey refuses to write: it is not up then."""
    breakers = read_breakers(settings.EMAIL_PROVIDERS)
    if breakers.refusal is not None:
        raise breakers.refusal
    return families(Facts({PROVIDERS: _describe(breakers)}))


def read_valkey() -> tuple[Providers | None, ServerTrouble | None]:
    """Read the breakers of all processes, and what is wrong with Valkey."""
    try:
        breakers = read_breakers(settings.EMAIL_PROVIDERS)
    except redis.RedisError as error:
        return None, explain_error(error)
    return _describe(breakers), None if breakers.refusal is None else explain_error(breakers.refusal)


def _describe(breakers: Breakers) -> Providers:
    return describe_providers(breakers.by_name, rules=read_rules(), now=breakers.now)
