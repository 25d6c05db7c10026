"""How far our consumers are behind at the broker, asked from outside: also when no consumer runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from django.conf import settings


class Lag(NamedTuple):
    """Events of one topic that the group has not acknowledged, and the age of the oldest (seconds)."""

    topic: str
    events: int
    seconds: float


def consumer_lags(*, topics: Sequence[str], group: str) -> list[Lag]:
    """Ask the configured broker. Raises `BrokerAway`."""
    module = importlib.import_module(f"outbox.events.transports.{settings.EVENT_TRANSPORT}_lag")
    return cast("Callable[..., list[Lag]]", module.consumer_lags)(topics=topics, group=group)
