"""The callers of the API's tests."""

from __future__ import annotations

import pytest

from tests.kit.api import Api, api, make_token

__all__ = ["api"]  # a fixture


@pytest.fixture(autouse=True)
def _no_fast_path(settings):
    """Let requests wake no worker, because these tests check only the request."""
    settings.FAST_PATH = False


@pytest.fixture
def two_shops(settings) -> None:
    """Accept orders of two other systems."""
    settings.ORDER_SOURCES = ["shop-a", "shop-b"]


@pytest.fixture
def bound(db, two_shops) -> Api:
    """Return a client with every scope whose token is bound to the first shop."""
    return Api(make_token(source="shop-a"))
