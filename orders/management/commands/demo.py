"""`manage.py demo`: place orders on a stack with a mailbox, or fill the tables with a history (`--days`).

The mailbox of `make run` refuses some recipients. Mailpit, which docker/compose.yaml has, refuses none.
"""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import requests
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from notifications.models import EmailNotification
from notifications.providers.sending import api_url
from orders import services
from orders.management.demo_history import DOMAIN
from orders.management.demo_mails import MARK
from orders.management.demo_write import write_history
from orders.models import Order
from outbox.core import context
from outbox.delivery.outcomes import DUE, Status

REFUSED, DOWN = "refused", "down"
MAILPIT_PORT = 8025
PRODUCTS = (("Field notebook", 1290), ("Brass pen", 4500), ("Desk lamp", 8900), ("Wool blanket", 12900))
LOCALES = (("en", "USD"), ("de", "EUR"), ("fr", "EUR"), ("es", "EUR"), ("en-GB", "GBP"))
Step = Callable[[uuid.UUID], Order]
#: What happens to an order after it is placed. Orders take these in turn.
COURSES: tuple[tuple[Step, ...], ...] = (
    (lambda id: services.pay_order(order_id=id),),
    (
        lambda id: services.pay_order(order_id=id),
        lambda id: services.confirm_order(order_id=id),
        lambda id: services.complete_order(order_id=id, tracking_url="https://parcels.example.com/t/1"),
    ),
    (
        lambda id: services.pay_order(order_id=id),
        lambda id: services.refund_order(order_id=id, amount=500),
    ),
    (lambda id: services.cancel_order(order_id=id, reason="Out of stock"),),
    (
        lambda id: services.pay_order(order_id=id),
        lambda id: services.cancel_order(order_id=id),
        lambda id: services.refund_order(order_id=id),
    ),
)


class Command(BaseCommand):
    help = (
        "Place and change orders on the running stack, wait for their e-mails and count them by state. "
        "Works only with a mailbox as the provider: that of `make run`, or Mailpit. "
        "With --days: write a history instead, so that the admin's charts and lists have something to show."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--orders", type=int, help="how many (default 300; with --days 20000)")
        parser.add_argument(
            "--wait", type=float, default=60, help="seconds to wait for the mails (default 60)"
        )

        parser.add_argument("--days", type=int, help="write a history of so many days (1 to 90)")
        parser.add_argument(
            "--force", action="store_true", help="write it beside real orders, or in production"
        )

    def handle(
        self, *args: Any, orders: int | None, wait: float, days: int | None, force: bool, **options: Any
    ) -> None:
        orders = orders or (20_000 if days else 300)
        if not 1 <= orders <= 100_000:
            raise CommandError("--orders must be from 1 to 100000.")
        if days is not None:
            self.write_history(orders=orders, days=days, force=force)
            return
        sandbox = "" if uses_mailpit() else mailbox_url()
        for recipient, status in ((REFUSED, 400), (DOWN, 503)) if sandbox else ():
            fail(sandbox=sandbox, recipient=recipient, status=status)
        console = Console()
        run = f"demo-{context.new_correlation_id()[:8]}"
        mails = EmailNotification.objects.filter(correlation_id=run)
        columns = (
            TextColumn("{task.description:<24}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console) as progress, context.working_for(context.Context(run)):
            placing = progress.add_task("Orders placed and moved", total=orders)
            for number in range(orders):
                place_and_move(number)
                progress.advance(placing)
            total = mails.count()
            sending = progress.add_task("E-mails handled", total=total)
            deadline = time.monotonic() + wait
            while time.monotonic() < deadline:
                untried = mails.filter(status__in=(*DUE, Status.PROCESSING), retry_count=0).count()
                progress.update(sending, completed=total - untried)
                if not untried:
                    break
                time.sleep(0.2)
        console.print(summary(Counter(mails.values_list("status", flat=True))))
        if sandbox:
            console.print(
                f"Dead letters (addresses '{REFUSED}-…') are in the admin, under E-mail notifications; "
                f"failed ones ('{DOWN}-…') are retried.\nThe mailbox: {sandbox}/ — mend the "
                f"provider there, then select the dead letters and resend them."
            )
        else:
            console.print("The mailbox is Mailpit, which refuses nobody. It shows its e-mails on port 8025.")
        console.print(f"All of this run's log lines and rows carry the correlation id {run}.")

    def write_history(self, *, orders: int, days: int, force: bool) -> None:
        """Write a history, unless the database may be a real shop's."""
        if not 1 <= days <= 90:
            raise CommandError("--days must be from 1 to 90.")
        if Order.objects.filter(correlation_id=MARK).exists():
            raise CommandError("The demo's history is there already: `make clean` starts anew.")
        if not force and settings.HTTPS:
            raise CommandError("This looks like production: HTTPS is on. --force writes demo data anyway.")
        if not force and Order.objects.exclude(correlation_id__startswith="demo-").exists():
            raise CommandError("There are real orders. --force writes demo data beside them.")
        began = time.monotonic()
        history = write_history(orders=orders, days=days)
        rows = (
            f"{len(history.orders):,} orders, {len(history.mails):,} e-mails, {len(history.events):,} events"
        )
        self.stdout.write(
            f"{rows} of the last {days} days, in {time.monotonic() - began:.0f} s."
            f" Rows whose partition would have left by now are left out."
            f"\nAll of it has the correlation id {MARK}, references DEMO-… and addresses of {DOMAIN}."
        )


def uses_mailpit() -> bool:
    """Tell whether all e-mails go to a Mailpit: it has an API beside its SMTP server."""
    if settings.EMAIL_PROVIDERS != ["smtp"]:
        return False
    try:
        answer = requests.get(
            f"http://{settings.EMAIL_HOST}:{MAILPIT_PORT}/api/v1/messages?limit=1", timeout=5
        )
        return answer.ok and "messages_count" in answer.json()
    except (requests.RequestException, ValueError):
        return False


def mailbox_url() -> str:
    """Return the URL of the bundled mailbox. Raise `CommandError` for a real provider."""
    url = urlsplit(api_url(settings.EMAIL_PROVIDERS[0]))
    base = f"{url.scheme}://{url.netloc}"
    if url.hostname in ("127.0.0.1", "localhost"):
        try:
            if requests.get(f"{base}/control/stats", timeout=5).ok:
                return base
        except requests.RequestException:
            pass
    raise CommandError(
        "The demo sends only to a mailbox: start one with `make run`, or with docker/compose.yaml."
    )


def fail(*, sandbox: str, recipient: str, status: int) -> None:
    """Let the mailbox refuse recipients whose address begins with `recipient`."""
    fault: dict[str, str | int] = {"kind": "status", "status": status, "to": f"^{recipient}-"}
    requests.post(f"{sandbox}/control/faults", json=fault, timeout=5).raise_for_status()


def place_and_move(number: int) -> None:
    """Place and change one order. Every 25th recipient is refused, every 40th gets a 503."""
    kind = REFUSED if number % 25 == 0 else DOWN if number % 40 == 1 else "customer"
    locale, currency = LOCALES[number % len(LOCALES)]
    chosen = random.sample(PRODUCTS, k=random.randint(1, 3))  # noqa: S311 - sample products, not a secret
    items = [
        {"sku": name.split()[0].lower(), "name": name, "quantity": 1, "unit_amount": price}
        for name, price in chosen
    ]
    order = services.place_order(
        user_id=uuid.uuid4(),
        email=f"{kind}-{number}@example.com",
        name=f"Customer {number}",
        total_amount=sum(price for _, price in chosen) + 590,
        currency=currency,
        locale=locale,
        reference=f"D-{number:05}",
        items=items,
    )
    for step in COURSES[number % len(COURSES)]:
        step(order.id)


def summary(counts: Counter[str]) -> Table:
    """Return a table of the number of e-mails in each state."""
    meaning = {
        Status.SENT: "accepted by the provider",
        Status.DEAD_LETTERED: "refused for good: resend or give up in the admin",
        Status.FAILED: "wait for the next attempt",
        Status.PENDING: "not tried yet",
        Status.PROCESSING: "being sent",
    }
    table = Table("State", "E-mails", "Meaning", title="What went where")
    for status, words in meaning.items():
        if counts[status]:
            table.add_row(str(status), str(counts[status]), words)
    return table
