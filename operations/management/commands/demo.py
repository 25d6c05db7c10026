"""`manage.py demo`: place orders on a stack with a mailbox.

`--one` prints a token and an order for a shell: `eval "$(.venv/bin/python manage.py demo --one)"`.

A mailbox is a provider that delivers nothing. That of `make run`, the sandbox, refuses some recipients.
Mailpit, the mailbox of docker/compose.yaml, refuses none.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any
from urllib.parse import urlsplit

import requests
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.urls import reverse
from rich.progress import Progress

from notifications.models import EmailNotification
from notifications.providers.sending import api_url
from notifications.states.transitions import DUE_STATES, LABELS, Status
from operations.demo import DOWN, REFUSED, place_and_move, place_one
from runtime.telemetry import context

MAILPIT_PORT = 8025
#: How long the token of `--one` is valid.
TOKEN_DAYS = 7
#: Due e-mails without an attempt. Every failed attempt writes `last_error`, but not each uses up a retry.
UNTRIED = Q(status__in=DUE_STATES, last_error="", next_attempt_at__lte=Now())


@contextmanager
def only_warnings() -> Iterator[None]:
    """Log nothing below a warning. Each order would log lines between those of the command."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.INFO))
    try:
        yield
    finally:
        logging.disable(before)


class Command(BaseCommand):
    help = (
        "Place and change orders on the running stack. Exit as soon as each e-mail is sent, is a dead"
        " letter, or waits for a retry. Count the e-mails by state and print what to open and click next. "
        "This works only if the provider is a mailbox: that of `make run`, or Mailpit. "
        "With --one, place one order and print it and a new token as lines for a shell."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--one",
            action="store_true",
            dest="is_one",
            help=f"place one order; print `export TOKEN=…` (for {TOKEN_DAYS} days) and `export ORDER=…`",
        )
        parser.add_argument("--orders", type=int, help="number of orders (default 300)")
        parser.add_argument("--wait", type=float, default=60, help="seconds to wait at most (default 60)")

    @only_warnings()
    def handle(self, *args: Any, is_one: bool, orders: int | None, wait: float, **options: Any) -> None:
        if is_one:
            if orders is not None:
                raise CommandError("--one does not allow --orders.")
            self.place_one()
            return
        orders = 300 if orders is None else orders
        if not 1 <= orders <= 100_000:
            raise CommandError("--orders must be from 1 to 100000.")
        self.place(orders=orders, wait=wait)

    def place_one(self) -> None:
        """Place one order. Print a new token and the order's id as lines that a shell can evaluate."""
        find_mailbox()
        token = StringIO()
        with context.working_for(context.Context(new_run())), transaction.atomic():
            order = place_one()
            create = ("tokens", "create", "demo", "--scope", "all", "--expires-days", str(TOKEN_DAYS))
            call_command(*create, stdout=token, stderr=StringIO())
        self.stdout.write(f"export TOKEN={token.getvalue().strip()}\nexport ORDER={order.id}")
        said = f"order {order.reference} placed; token valid {TOKEN_DAYS} days"
        self.stderr.write(said, style_func=str)  # not in the red of errors

    def place(self, *, orders: int, wait: float) -> None:
        """Place orders. Wait for at most `wait` seconds until each e-mail ended or waits for a retry."""
        mailbox = find_mailbox()
        if mailbox:
            add_faults(mailbox)
        run = new_run()
        emails = EmailNotification.objects.filter(correlation_id=run)
        busy = emails.filter(UNTRIED | Q(status=Status.PROCESSING))
        bars = Progress(transient=True, disable=not self.stdout.isatty())
        with bars, context.working_for(context.Context(run)):
            for number in bars.track(range(orders), description="Orders placed and changed"):
                place_and_move(number)
            total, deadline = emails.count(), time.monotonic() + wait
            handled = bars.add_task("E-mails handled", total=total)
            while (left := busy.count()) and time.monotonic() < deadline:
                bars.update(handled, completed=total - left)
                time.sleep(0.2)
        self.stdout.write(f"{orders:,} {'order' if orders == 1 else 'orders'} placed and changed.")
        for line in count_ends(emails):
            self.stdout.write(line)
        self.stdout.write(next_steps(mailbox))
        self.stdout.write(
            f"The rows of this run and the log lines of its e-mails have the correlation id {run}."
        )


def add_faults(mailbox: str) -> None:
    """Let the mailbox refuse some recipients, unless it does since an earlier demo."""
    url = f"{mailbox}/control/faults"
    present = requests.get(url, timeout=5).json()
    for recipient, status in ((REFUSED, 400), (DOWN, 503)):
        fault: dict[str, str | int] = {"kind": "status", "status": status, "to": f"^{recipient}-"}
        if not any(fault.items() <= existing.items() for existing in present):
            requests.post(url, json=fault, timeout=5).raise_for_status()


def count_ends(emails: QuerySet[EmailNotification]) -> Iterator[str]:
    """Yield one line for each end that an e-mail can have, the most frequent first."""
    counts = Counter(_end(status, error) for status, error in emails.values_list("status", "last_error"))
    for (singular, plural), count in counts.most_common():
        yield f"{count:6,} e-mail {singular}" if count == 1 else f"{count:6,} e-mails {plural}"


def _end(status: str, error: str) -> tuple[str, str]:
    shown = LABELS[Status.FAILED if status == Status.PENDING and error else status]  # which was tried
    return shown.singular, shown.plural


def next_steps(mailbox: str) -> str:
    """Return what to open and click now. `mailbox` is the bundled mailbox's URL, or "" for Mailpit."""
    causes = reverse("admin:notifications_emailnotification_causes")
    if not mailbox:
        return (
            "\nNext, open the mailbox and click an e-mail. It is Mailpit, on port "
            f"{MAILPIT_PORT}, and refuses no e-mail.\nThen open /admin/, click Orders, and click an order to"
            " see its timeline.\n"
        )
    address = urlsplit(mailbox)
    web = f"{address.scheme}://{address.hostname}:{(address.port or 1) - 1}"
    if not _ask(f"{web}/readyz"):  # `make run` took another port for the mailbox than the one after PORT
        web = ""
    return (
        f"\nThe mailbox refuses the addresses {REFUSED}-…, and answers 503 for {DOWN}-….\n"
        f"1. Open {mailbox}/ and click an e-mail to read it.\n"
        f"2. Open {web}{causes} to see the dead letters (user admin, password admin).\n"
        "3. Click Heal in the mailbox, then Resend all in the admin. The e-mails arrive in the mailbox.\n"
        f"Each e-mail to {DOWN}-… is sent at its next retry after Heal.\n"
    )


def new_run() -> str:
    """Return a correlation id for the rows of this run."""
    return f"demo-{context.new_correlation_id()[:8]}"


def find_mailbox() -> str:
    """Return the URL of the bundled mailbox, or "" for Mailpit. Raise `CommandError` for a real provider."""
    if settings.EMAIL_PROVIDERS == ["smtp"]:
        if "messages_count" in _ask(f"http://{settings.EMAIL_HOST}:{MAILPIT_PORT}/api/v1/messages?limit=1"):
            return ""
    else:
        url = urlsplit(api_url(settings.EMAIL_PROVIDERS[0]))
        base = f"{url.scheme}://{url.netloc}"
        if url.hostname in ("127.0.0.1", "localhost") and _ask(f"{base}/control/stats"):
            return base
    raise CommandError("The demo sends only to a mailbox. Start one with `make run` or docker/compose.yaml.")


def _ask(url: str) -> dict[str, Any]:
    try:
        answer = requests.get(url, timeout=5)
        answer.raise_for_status()
        return dict(answer.json())
    except (requests.RequestException, ValueError):
        return {}
