"""The real Kafka of this test run, for the tests of the transports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import kafka


@pytest.fixture(scope="session")
def shared() -> Iterator[kafka.Shared]:
    """Return the broker of all test processes, which the first test that needs it starts."""
    with kafka.shared() as broker:
        yield broker
