"""A real Prometheus and Alertmanager see each failure, and its end; all durations are divided by 60.

The whole list of tests/flows/failures.py is a drill: `make drills TESTS=tests/flows/test_alerts.py`.
"""

from __future__ import annotations

import dataclasses
import re
import time

import pytest

from tests.flows.failures import FAILURES, Failure, World, running
from tests.flows.monitoring import faster_query, needs_monitoring
from tests.kit.alerts import DASHBOARDS, queries
from tests.kit.roles import RUNNING
from tests.kit.shop import PAYMENT, payment_event

pytestmark = [pytest.mark.flow, needs_monitoring]


def told(world: World, failure: Failure, status: str, since: float) -> bool:
    return all(world.monitoring.heard(name, status, since=since) for name in failure.alerts)


def fires_and_ends(world: World, failure: Failure, *, seconds: float = 90.0) -> tuple[float, float]:
    """Break and heal, and return the seconds until all its alerts arrived, and until all had ended."""
    began = time.monotonic()
    with failure.breaks(world):
        world.shop.until(
            lambda: told(world, failure, "firing", began), f"{failure} is told: {failure.alerts}", seconds
        )
        fired = time.monotonic() - began
        world.shop.until(
            lambda: all(world.monitoring.states().get(name) == "firing" for name in failure.follows),
            f"{failure.follows} fire",
            seconds,
        )
        healing = time.monotonic()
    world.shop.until(
        lambda: told(world, failure, "resolved", healing), f"the end of {failure} is told", seconds
    )
    ended = time.monotonic() - healing
    for name in failure.alerts:
        alert = world.monitoring.heard(name, "firing", since=began)
        assert alert is not None
        assert (
            alert["receiver"]
            == {"critical": "pager", "warning": "chat", "info": "ticket"}[alert["labels"]["severity"]]
        )
        assert not re.search(r"<error|<no value>|NaN", str(alert["annotations"])), alert["annotations"]
    return fired, ended


def test_a_provider_that_is_down_wakes_somebody_and_its_return_is_told():
    with running("web", "worker") as world:
        fires_and_ends(world, dataclasses.replace(FAILURES[0], follows=()))


@pytest.fixture(scope="module")
def world():
    with running(*RUNNING) as world:
        world.shop.until(
            lambda: len(world.monitoring.ask("up == 1")) == len(RUNNING), "all processes are scraped"
        )
        yield world


@pytest.mark.drill
@pytest.mark.parametrize("failure", FAILURES, ids=str)
def test_a_failure_is_told_and_its_end_too(world, failure):
    world.shop.until(lambda: "firing" not in world.monitoring.states().values(), "nothing else is wrong")
    fired, ended = fires_and_ends(world, failure)
    print(f"{failure}: {', '.join(failure.alerts)} after {fired:.1f} s, over {ended:.1f} s after the end")


@pytest.mark.drill
def test_each_panel_of_the_dashboards_finds_data(world):
    with world.broker() as broker:
        for _ in range(5):
            broker.xadd(PAYMENT, payment_event(world.shop.place()))
    asked = [(one["title"], title, query) for one in DASHBOARDS.values() for title, query in queries(one)]

    def empty() -> list[tuple[str, str, str]]:
        return [(*where, query) for *where, query in asked if not world.monitoring.ask(faster_query(query))]

    world.shop.until(lambda: not empty(), f"each panel has data: {empty()}")
    assert len(asked) > 30
