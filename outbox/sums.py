"""The minute samples of the breakers, for the admin's charts. `operations.apps` finds this module."""

from __future__ import annotations

from collections.abc import Mapping

from outbox.drain import gate
from outbox.gate.breaker import BreakerState
from runtime.charts.sums import register_sampler


@register_sampler
def open_breakers() -> Mapping[str, int]:
    """Return 1 for each provider whose breaker is not closed, or was closed by a success a minute ago."""
    return {
        f"open:{view.provider}": int(
            view.state is not BreakerState.CLOSED
            or (view.breaker.reason == "accepted" and (view.changed_ago_seconds or 0.0) < 60.0)
        )
        for view in gate().read_providers()
    }
