"""A sandbox in the test's own process, and its clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests

from local.sandbox import Sandbox

Send = Callable[..., requests.Response]


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as running:
        yield running


@pytest.fixture
def client() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


def payload(*, to: str = "ada@example.com", notification_id: str = "n-1", **changes: Any) -> dict[str, Any]:
    """Return SendGrid's request for one of our e-mails. A change to None leaves the field out."""
    full = {
        "personalizations": [{"to": [{"email": to, "name": "Ada"}]}],
        "from": {"email": "orders@example.com"},
        "subject": "Your order is paid",
        "content": [
            {"type": "text/plain", "value": "Thank you."},
            {"type": "text/html", "value": "<p>Thank you.</p>"},
        ],
        "headers": {"Message-ID": f"<{notification_id}@example.com>"},
        "custom_args": {"notification_id": notification_id, "order_id": "o-1", "event_type": "order.paid"},
    }
    return {name: value for name, value in {**full, **changes}.items() if value is not None}


@pytest.fixture
def send(sandbox: Sandbox, client: requests.Session) -> Send:
    def post(*, key: str = "any", timeout: float = 5, **changes: Any) -> requests.Response:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return client.post(
            f"{sandbox.api_url}mail/send", json=payload(**changes), headers=headers, timeout=timeout
        )

    return post
