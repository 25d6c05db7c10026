"""A sandbox in the test's own process, and its clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from local.sandbox import Sandbox
from tests.kit.sendgrid import Send, payload


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as running:
        yield running


@pytest.fixture
def client() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


@pytest.fixture
def send(sandbox: Sandbox, client: requests.Session) -> Send:
    def post(*, key: str = "any", timeout: float = 5, **changes: Any) -> requests.Response:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return client.post(
            f"{sandbox.api_url}mail/send", json=payload(**changes), headers=headers, timeout=timeout
        )

    return post
