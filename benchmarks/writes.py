"""Status changes at a steady rate against the running stack (`make run`), the mails they cause counted along.

    .venv/bin/python benchmarks/writes.py --rate 167 --seconds 30

Open loop: a change is due at its time whatever happened to those before it, and its latency counts from then.
Orders are placed beforehand; each change is a `pay` with an Idempotency-Key, and mails. Prints one table.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

import django

django.setup()

import urllib3  # noqa: E402
from django.db.models import F  # noqa: E402

from notifications.models import EmailNotification  # noqa: E402
from orders.services import place_order  # noqa: E402
from outbox import context  # noqa: E402
from outbox.models import ApiToken  # noqa: E402


def token() -> str:
    """A token for this run."""
    secret = ApiToken.new_secret()
    ApiToken.objects.create(
        name="benchmark", prefix=secret[:12], digest=ApiToken.digest_of(secret), scopes=list(ApiToken.SCOPES)
    )
    return secret


def percentile(sorted_values: list[float], share: float) -> float:
    """The value below which `share` of them lie."""
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * share))]


def main() -> None:
    """Place, pay at the rate, wait for the mails, print."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rate", type=float, default=167.0, help="changes a second")
    arguments.add_argument("--seconds", type=float, default=30.0)
    arguments.add_argument("--url", default=f"http://127.0.0.1:{os.environ.get('PORT', '8000')}")
    given = arguments.parse_args()
    total = int(given.rate * given.seconds)
    run = f"bench-{uuid.uuid4().hex[:8]}"
    with context.working_for(context.Context(run)):
        ids = [
            place_order(
                user_id=uuid.uuid4(),
                email=f"bench-{n}@example.com",
                name="Bench",
                total_amount=4200,
                reference=f"B-{n}",
                items=[{"sku": "pen", "name": "Brass pen", "quantity": 1, "unit_amount": 4200}],
            ).id
            for n in range(total)
        ]
    headers = {"Authorization": f"Bearer {token()}", "X-Correlation-ID": run}
    http = urllib3.PoolManager(maxsize=32, retries=False)
    latencies: list[float] = []
    errors: list[str] = []
    lock = threading.Lock()

    def pay(order_id: uuid.UUID, due: float) -> None:
        answer = http.request(
            "POST",
            f"{given.url}/api/v1/orders/{order_id}/pay",
            headers=headers | {"Idempotency-Key": f"{run}-{order_id}"},
        )
        with lock:
            latencies.append((time.perf_counter() - due) * 1000)
            if answer.status != 200:
                errors.append(f"{answer.status}")

    for order_id in [place_warm(n) for n in range(32)]:
        pay(order_id, time.perf_counter())
    latencies.clear()
    start = time.perf_counter() + 0.5
    with ThreadPoolExecutor(32) as pool:
        for number, order_id in enumerate(ids):
            due = start + number / given.rate
            time.sleep(max(0.0, due - time.perf_counter()))
            pool.submit(pay, order_id, due)
    mails = EmailNotification.objects.filter(correlation_id=run)
    deadline = time.monotonic() + 60
    while mails.exclude(status="sent").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    waits = sorted(
        wait.total_seconds() * 1000
        for wait in mails.filter(status="sent").values_list(F("sent_at") - F("created_at"), flat=True)
    )
    latencies.sort()
    print(f"{total} status changes at {given.rate:g} a second; errors: {len(errors)}")
    for name, values in (("write, ms", latencies), ("commit -> accepted and recorded, ms", waits)):
        print(
            f"{name:<38} p50 {statistics.median(values):7.1f}   p95 {percentile(values, 0.95):7.1f}"
            f"   p99 {percentile(values, 0.99):7.1f}   max {values[-1]:7.1f}   n {len(values)}"
        )


def place_warm(number: int) -> uuid.UUID:
    """An order to warm the web processes with."""
    return place_order(user_id=uuid.uuid4(), email=f"warm-{number}@example.com", total_amount=1).id


if __name__ == "__main__":
    main()
