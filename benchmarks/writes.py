"""Status changes at a steady rate through everything: web, worker, beat, standby, relay, consumer, provider.

Orders are placed beforehand; each change is a `pay` with an Idempotency-Key and mails its customer, and the
provider posts its events about each mail back.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

import psycopg

from benchmarks import rows
from benchmarks.rig import Rig, load, percentile, spent
from config.local.machine import HOST


class Pipeline:
    """All processes of orderpost, running, and a token for the API."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        rig.start_sandbox()
        rig.start("web", "worker", "beat", "standby", "relay", "consumer")
        self.token = rig.python("manage.py", "create_token", "bench", "--scope", "all").strip()
        self.run_at(rate=100, seconds=5)  # warm

    def run_at(self, *, rate: float, seconds: float) -> dict[str, Any]:
        """Pay orders at a rate and wait for their mails. Times in ms, CPU in per cent."""
        rig, run = self.rig, uuid.uuid4().hex[:8]
        with psycopg.connect(rig.postgres.url, autocommit=True) as connection:
            ids = rows.place(connection.cursor(), int(rate * seconds))
        requests = [
            f"POST /api/v1/orders/{id}/pay HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {self.token}\r\n"
            f"X-Correlation-ID: {run}\r\nIdempotency-Key: {run}-{id}\r\nContent-Length: 0\r\n\r\n"
            for id in ids
        ]
        before, began = rig.cpu(), time.monotonic()
        seen = load(port=rig.port, rate=rate, requests=requests)
        took, after = time.monotonic() - began, rig.cpu()
        unsent = "SELECT count(*) FROM email_notifications WHERE correlation_id = %s AND status <> 'sent'"
        deadline = time.monotonic() + 60
        while rig.query(unsent, run)[0][0] and time.monotonic() < deadline:
            time.sleep(0.1)
        waits = [
            float(wait) * 1000
            for (wait,) in rig.query(
                "SELECT extract(epoch FROM sent_at - created_at) FROM email_notifications"
                " WHERE correlation_id = %s AND status = 'sent'",
                run,
            )
        ]
        events = [
            float(wait) * 1000
            for (wait,) in rig.query(
                "SELECT extract(epoch FROM published_at - created_at) FROM outbox_events"
                " WHERE metadata->>'correlationId' = %s AND published_at IS NOT NULL",
                run,
            )
        ]
        return {
            "rate": rate,
            "changes": len(ids),
            "errors": sum(n for status, n in seen["statuses"].items() if status != "200"),
            "sent": len(waits),
            "write": {name: percentile(seen["latencies"], share) for name, share in SHARES.items()},
            "mail": {name: percentile(waits, share) for name, share in SHARES.items()},
            "event": {name: percentile(events, share) for name, share in SHARES.items()},
            "client late p99": percentile(seen["late"], 0.99),
            "cpu": spent(before, after, took),
        }


SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
