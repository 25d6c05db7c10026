"""`python -m benchmarks.ours WHAT …`: what benchmarks.drain and benchmarks.enqueue run of orderpost.

drain           say "ready", wait for a line, send all that is due
enqueue COUNT   pay COUNT orders, each in a transaction with its mail, event and keys; prints CPU ms for each,
                then the same without rendering the mail
claim COUNT     claim and give back 100 rows COUNT times; prints the median ms of a claim
admin           open the admin's e-mails; prints the median ms of each page as JSON
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

import django

django.setup()

from django.contrib.auth import get_user_model  # noqa: E402
from django.db import connection  # noqa: E402
from django.test import Client  # noqa: E402

from benchmarks.mails import HTML, SUBJECT, TEXT  # noqa: E402
from benchmarks.rig import own_cpu  # noqa: E402
from benchmarks.rows import place  # noqa: E402
from notifications import rendering, services, tasks  # noqa: E402
from notifications.delivery import drain as delivery  # noqa: E402
from notifications.models import EmailNotification  # noqa: E402
from orders.services import pay_order  # noqa: E402
from outbox.delivery.changes import Settlement  # noqa: E402
from outbox.delivery.outcomes import Outcome, Verdict  # noqa: E402
from outbox.events import notify  # noqa: E402


def drain() -> None:
    """Send all that is due."""
    EmailNotification.objects.first()
    connection.close()
    print("ready", flush=True)
    sys.stdin.readline()
    while (done := delivery.drain_emails()) is not None and (done.more or done.claimed):
        pass
    print("done", flush=True)


def enqueue(count: int) -> None:
    """Pay orders without wake-ups, as between two wake-ups of a busy process."""
    tasks.waker.wake = notify.waker.wake = lambda: None  # type: ignore[method-assign]
    with connection.cursor() as cursor:
        ids = place(cursor, 2 * (count + count // 5))

    def measure(some: list[object]) -> float:
        warm = len(some) // 6
        for id in some[:warm]:
            pay_order(order_id=id)  # type: ignore[arg-type]
        before = own_cpu()
        for id in some[warm:]:
            pay_order(order_id=id)  # type: ignore[arg-type]
        return (own_cpu() - before) / len(some[warm:]) * 1000

    rendered = measure(ids[: len(ids) // 2])
    ready = rendering.RenderedEmail(SUBJECT, HTML, TEXT)
    services.render_email = lambda **_: ready  # type: ignore[assignment]
    print(rendered, measure(ids[len(ids) // 2 :]))


def claim(count: int) -> None:
    """Claim due rows and give them back, `count` times."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        rows = EmailNotification.objects.claim(limit=100, fresh=25)
        took.append((time.perf_counter() - began) * 1000)
        EmailNotification.objects.settle(
            Settlement(row.id, Outcome(Verdict.RETURNED), row.claim_token) for row in rows
        )
    print(statistics.median(took), len(rows))


def admin() -> None:
    """Open the first page, a page of dead letters, and a search for an address."""
    person, _ = get_user_model().objects.get_or_create(
        username="bench", defaults={"is_staff": True, "is_superuser": True}
    )
    client = Client(SERVER_NAME="localhost")
    client.force_login(person)
    here = "/admin/notifications/emailnotification/"
    found = {}
    for name, path in (
        ("admin list ms", here),
        ("admin search ms", f"{here}?q=user7@example.com"),
        ("admin dead letters ms", f"{here}?status__exact=dead_lettered"),
    ):
        took = []
        for _ in range(7):
            began = time.perf_counter()
            assert client.get(path).status_code == 200
            took.append((time.perf_counter() - began) * 1000)
        found[name] = statistics.median(took)
    print(json.dumps(found))


if __name__ == "__main__":
    what, *given = sys.argv[1:]
    {"drain": drain, "enqueue": enqueue, "claim": claim, "admin": admin}[what](*map(int, given))
