"""Compose and the chart give a stop more time than a send takes: one connect and one reply."""

from __future__ import annotations

import pytest
import yaml

from local.machine import PROJECT


def of_compose() -> list[float]:
    services = yaml.safe_load((PROJECT / "docker" / "compose.yaml").read_text())["services"]
    ours = [one for one in services.values() if "EMAIL_PROVIDERS" in (one.get("environment") or {})]
    return [float(one["stop_grace_period"].removesuffix("s")) for one in ours]


def of_the_chart() -> list[float]:
    values = yaml.safe_load((PROJECT / "docker" / "helm" / "orderpost" / "values.yaml").read_text())
    roles = [values["defaults"], *values["roles"].values()]
    return [float(role.get("terminationGracePeriodSeconds", 1000)) for role in roles]


@pytest.mark.parametrize("graces", [of_compose, of_the_chart])
def test_a_stop_has_longer_than_a_send_takes(settings, graces):
    found = graces()
    assert found
    assert min(found) > settings.EMAIL_CONNECT_TIMEOUT + settings.EMAIL_READ_TIMEOUT
