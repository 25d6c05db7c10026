"""The metrics of what waits at the brokers for our consumers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django.conf import settings
from prometheus_client.core import GaugeMetricFamily

from events import counters  # noqa: F401 - declares them in every process
from events.consuming import handlers
from events.consuming.consumer import GROUP
from events.transports import Lag, consumer_lags
from runtime.telemetry.metrics import from_broker


@from_broker(settings.EVENT_TRANSPORT)
def lag() -> Iterator[GaugeMetricFamily]:
    return _families(consumer_lags(topics=sorted(handlers.subscription.read()), group=GROUP), group=GROUP)


def _families(lags: Sequence[Lag], *, group: str) -> Iterator[GaugeMetricFamily]:
    for name, text, field in (
        ("orderpost_consumer_lag_events", "Messages that our consumers have not acknowledged", "events"),
        ("orderpost_consumer_lag_seconds", "Age of the oldest such message", "seconds"),
    ):
        family = GaugeMetricFamily(name, text, labels=["topic", "group"])
        for one in lags:
            family.add_metric([one.topic, group], getattr(one, field))
        yield family
