"""The providers of the admin's tests are closed until a test opens one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.admin import fresh_breakers


@pytest.fixture
def breakers(valkey_url: str) -> Iterator[None]:
    with fresh_breakers():
        yield
