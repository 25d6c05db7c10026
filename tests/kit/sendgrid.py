"""SendGrid's requests, as the tests of the sandbox send them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import requests

Send = Callable[..., requests.Response]


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
