"""Status changes at a steady rate through everything: web, worker, beat, standby, relay, consumer, provider.

Orders are placed beforehand; each change is a `pay` with an Idempotency-Key and mails its customer.
"""

from __future__ import annotations

import statistics
import time
import uuid
from typing import Any

import psycopg

from benchmarks import rows
from benchmarks.rig import Rig, load, percentile, spent
from config.local.machine import HOST


class Pipeline:
    """A running orderpost and a token for it."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        rig.start_sandbox()
        rig.start("web", "worker", "beat", "standby", "relay", "consumer")
        self.token = rig.python("manage.py", "create_token", "bench", "--scope", "all").strip()
        self.run_at(rate=100, seconds=5)  # warm

    def run_at(self, *, rate: float, seconds: float) -> dict[str, Any]:
        """This function will pay orders at a rate and wait for their mails. Times in ms, CPU in per cent."""
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
        return {
            "rate": rate,
            "changes": len(ids),
            "errors": sum(n for status, n in seen["statuses"].items() if status != "200"),
            "sent": len(waits),
            "write": {name: percentile(seen["latencies"], share) for name, share in SHARES.items()},
            "mail": {name: percentile(waits, share) for name, share in SHARES.items()},
            "client late": percentile(seen["late"], 0.99),
            "client late median": statistics.median(seen["late"]),
            "cpu": spent(before, after, took),
        }


SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}

if __name__ == "__main__":
    import sys

    with Rig(EMAIL_RATE_LIMIT="1000", LOG_LEVEL="WARNING" if "-q" in sys.argv else "INFO") as rig:
        pipeline = Pipeline(rig)
        for rate in [float(a) for a in sys.argv[1:] if a[0] != "-"]:
            r = pipeline.run_at(rate=rate, seconds=20)
            r["cpu"] = {k: round(v) for k, v in r["cpu"].items()}
            for k in ("write", "mail"):
                r[k] = {a: round(b, 1) for a, b in r[k].items()}
            print(r, flush=True)
        time.sleep(float(sys.argv[-1][5:]) if sys.argv[-1].startswith("-wait") else 0)
