"""Batches of 20 rows, for which no worker is woken."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.jobs import small_batches


@pytest.fixture(autouse=True)
def wakes() -> Iterator[list[str]]:
    """Return a list that gets an entry for each wake-up."""
    with small_batches(rows=20) as wakes:
        yield wakes
