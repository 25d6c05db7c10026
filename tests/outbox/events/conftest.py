"""The real Kafka of this test run, for the tests of the transports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import kafka


@pytest.fixture(scope="session")
def shared() -> Iterator[kafka.Shared]:
    """One broker for all test processes, started by the first test that needs it."""
    with kafka.shared() as broker:
        yield broker
