"""`python -m benchmarks.peers WHAT …`: the parts of the peers that benchmarks.drain and .enqueue run.

prepare               make the tables
fill PEER COUNT       queue that many mails, as fast as the peer's own bulk call does
drain PROCESSES       say "ready", wait for a line, send all that post_office has queued
enqueue PEER COUNT    save COUNT changes with their mails, each in a transaction; prints CPU ms for each
"""

from __future__ import annotations

import os
import sys
import uuid

os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.peers.settings"

import django

django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import connection, transaction  # noqa: E402

from benchmarks.peers.models import Mail, Order  # noqa: E402
from benchmarks.rig import own_cpu  # noqa: E402
from benchmarks.rows import HTML, SUBJECT, TEXT  # noqa: E402

FROM = "orders@example.com"


def prepare() -> None:
    call_command("migrate", verbosity=0)
    with connection.schema_editor() as editor:
        editor.create_model(Order)
        editor.create_model(Mail)


def fill(peer: str, count: int) -> None:
    recipients = [f"user{number}@example.com" for number in range(count)]
    if peer == "post_office":
        from post_office.models import Email

        Email.objects.bulk_create(
            Email(
                from_email=FROM,
                to=[to],
                subject=SUBJECT,
                message=TEXT,
                html_message=HTML,
                status=2,
                priority=2,
            )
            for to in recipients
        )
    else:
        from benchmarks.peers.celery import app, send

        rows = Mail.objects.bulk_create(
            Mail(recipient=to, subject=SUBJECT, text=TEXT, html=HTML) for to in recipients
        )
        with app.producer_pool.acquire(block=True) as producer:
            for row in rows:
                send.apply_async([row.id], producer=producer)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def drain(processes: int) -> None:
    """Send every queued mail of post_office. Celery's worker drains the other peer."""
    from post_office.mail import send_queued_mail_until_done

    connection.close()
    print("ready", flush=True)
    sys.stdin.readline()
    send_queued_mail_until_done(lockfile=f"{os.getpid()}.bench", processes=processes, log_level=1)
    print("done", flush=True)


def enqueue(peer: str, count: int) -> None:
    """Save changes with their mails."""
    from post_office import mail

    orders = [Order(id=uuid.uuid4()) for _ in range(count)]
    Order.objects.bulk_create(orders)

    def change(order: Order) -> None:
        with transaction.atomic():
            Order.objects.filter(id=order.id, status="pending").update(status="paid")
            to = f"{order.id.hex}@example.com"
            if peer == "post_office":
                mail.send(to, FROM, subject=SUBJECT, message=TEXT, html_message=HTML)
            else:
                from benchmarks.peers.celery import send

                row = Mail.objects.create(recipient=to, subject=SUBJECT, text=TEXT, html=HTML)
                transaction.on_commit(lambda: send.delay(row.id) and None)

    warm, rest = orders[: count // 5], orders[count // 5 :]
    for order in warm:
        change(order)
    before = own_cpu()
    for order in rest:
        change(order)
    print((own_cpu() - before) / len(rest) * 1000)


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    {"prepare": prepare, "fill": fill, "drain": drain, "enqueue": enqueue}[what](
        *(int(argument) if argument.isdigit() else argument for argument in arguments)
    )
