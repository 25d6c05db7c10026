"""`python -m benchmarks.ours WHAT …`: the parts of orderpost that benchmarks.drain and .enqueue run.

drain           print "ready", wait for a line, send every due mail, print a line
enqueue COUNT   pay COUNT orders, each in a transaction with its mail, event and keys; prints CPU ms for each,
                then the same without rendering the mail
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

import django

django.setup()

from django.db import connection, transaction  # noqa: E402

from benchmarks.rig import own_cpu  # noqa: E402
from benchmarks.rows import HTML, SUBJECT, TEXT, place  # noqa: E402
from events.publishing import notify  # noqa: E402
from notifications import new_emails, rendering, wake  # noqa: E402
from notifications.models import EmailNotification  # noqa: E402
from orders import services as orders  # noqa: E402
from outbox import drain as delivery  # noqa: E402


def drain() -> None:
    """Send every due mail."""
    EmailNotification.objects.first()
    connection.close()
    print("ready", flush=True)
    sys.stdin.readline()
    while (done := delivery.drain_emails()) is not None and (done.has_more or done.claimed):
        pass
    print("sent", flush=True)


def enqueue(count: int) -> None:
    """Pay orders without wake-ups, as between two wake-ups of a busy process."""
    wake.waker.wake = notify.waker.wake = lambda *_: None  # type: ignore[method-assign]
    with connection.cursor() as cursor:
        ids = place(cursor, 2 * (count + count // 5))

    def pay(id: object) -> None:
        with transaction.atomic():
            orders.pay(order_id=id).save()  # type: ignore[arg-type]

    def measure(some: list[object]) -> float:
        warm = len(some) // 6
        for id in some[:warm]:
            pay(id)
        before = own_cpu()
        for id in some[warm:]:
            pay(id)
        return (own_cpu() - before) / len(some[warm:]) * 1000

    rendered = measure(ids[: len(ids) // 2])
    ready = rendering.RenderedEmail(SUBJECT, HTML, TEXT)
    new_emails.render_email = lambda **_: ready  # type: ignore[assignment]
    print(rendered, measure(ids[len(ids) // 2 :]))


if __name__ == "__main__":
    what, *numbers = sys.argv[1:]
    {"drain": drain, "enqueue": enqueue}[what](*map(int, numbers))
