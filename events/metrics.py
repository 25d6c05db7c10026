"""The metrics of what waits at the broker for our consumers."""

from __future__ import annotations

from collections.abc import Iterator

from django.conf import settings
from prometheus_client.core import GaugeMetricFamily

from events import counters  # noqa: F401 - declares them in every process
from events.conditions import LAGS
from events.consuming import handlers
from events.consuming.consumer import GROUP
from events.transports import consumer_lags
from runtime.conditions import Facts, families
from runtime.telemetry.metrics import from_broker


@from_broker(settings.EVENT_TRANSPORT)
def lag() -> Iterator[GaugeMetricFamily]:
    lags = consumer_lags(topics=sorted(handlers.subscription().read()), group=GROUP)
    return families(Facts({LAGS: lags}))
