"""A real Prometheus and Alertmanager tell of a failure and of its end. Times are divided by 60.

tests/ops/test_alert_rules.py tests each alert and each route with their real times.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import redis

from local.machine import free_port
from local.sandbox import WebhookSettings
from tests.flows.monitoring import Monitoring, faster_query, needs_monitoring
from tests.kit.alerts import DASHBOARDS, queries
from tests.kit.customers import Customers
from tests.kit.roles import RUNNING
from tests.kit.shop import KEYS, PAYMENT, Shop, payment_event

pytestmark = [pytest.mark.flow, needs_monitoring]

SETTINGS = {
    "BREAKER_OPEN_SECONDS": "0.25",
    "EMAIL_CONCURRENCY": "4",
    "EMAIL_READ_TIMEOUT": "5",
    "LEASE_SECONDS": "8",
    "DATABASE_TIMEOUT": "0.7",
    "WEBHOOKS_UNSIGNED": "off",
}


@dataclasses.dataclass
class World:
    """A shop whose every process Prometheus scrapes, with a customer and a provider that posts events."""

    shop: Shop
    monitoring: Monitoring


@contextlib.contextmanager
def running(*roles: str) -> Iterator[World]:
    """Start a shop of these processes with its monitoring and its customer."""
    ports = {role: free_port() for role in roles}
    with Shop(proxied=False, durable_valkey=False, tls=False, **SETTINGS) as shop:
        shop.sandbox.webhooks.settings = WebhookSettings(url=shop.webhooks, keys=KEYS)
        with Monitoring(shop, ports=ports) as monitoring:
            for role in roles:
                shop.start(role, METRICS_PORT=str(ports[role]))
            with Customers(shop, rate=8, threads=1, by_event=0):
                yield World(shop, monitoring)


@contextlib.contextmanager
def provider_down(world: World) -> Iterator[None]:
    world.shop.sandbox.fail(kind="status", status=503)
    yield
    world.shop.sandbox.heal()


@contextlib.contextmanager
def valkey_gone(world: World) -> Iterator[None]:
    world.shop.valkey.stop()
    yield
    world.shop.valkey.start(log=world.shop.folder / "valkey.log")


#: What breaks, the alert, and who is told.
FAILURES: list[tuple[Callable[[World], AbstractContextManager[None]], str, str]] = [
    (provider_down, "EmailProvidersDown", "pager"),
    (valkey_gone, "BrokerDown", "chat"),
]


def tell(monitoring: Monitoring, name: str, status: str, *, since: float) -> dict[str, Any]:
    """Wait for a message about an alert."""
    monitoring.shop.until(lambda: monitoring.heard(name, status, since=since), f"{name} is {status}")
    message = monitoring.heard(name, status, since=since)
    assert message is not None
    return message


def test_a_receiver_is_told_of_a_failure_and_of_its_end():
    with running("web", "worker") as world:
        for breaks, name, receiver in FAILURES:
            began = time.monotonic()
            with breaks(world):
                alert = tell(world.monitoring, name, "firing", since=began)
                healing = time.monotonic()
            tell(world.monitoring, name, "resolved", since=healing)
            assert alert["receiver"] == receiver
            assert not re.search(r"<error|<no value>|NaN", str(alert["annotations"])), alert["annotations"]


@pytest.mark.drill
def test_each_panel_of_the_dashboards_finds_data():
    asked = [
        (dashboard["title"], title, query)
        for dashboard in DASHBOARDS.values()
        for title, query in queries(dashboard)
    ]
    with running(*RUNNING) as world, redis.Redis.from_url(world.shop.valkey.url) as broker:
        for _ in range(5):
            broker.xadd(PAYMENT, payment_event(world.shop.place()))

        def empty() -> list[tuple[str, str, str]]:
            return [panel for panel in asked if not world.monitoring.ask(faster_query(panel[2]))]

        world.shop.until(lambda: not empty(), f"each panel has data: {empty()}")
    assert len(asked) > 30
