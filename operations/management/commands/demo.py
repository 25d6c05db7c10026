"""`manage.py demo`: fill a stack with a mailbox: two shops, a month of orders, and a connection in trial.

`--one` prints a token and an order for a shell: `eval "$(.venv/bin/python manage.py demo --one)"`.

A mailbox is a provider that delivers nothing. That of `make run`, the sandbox, refuses some recipients.
Mailpit, the mailbox of docker/compose.yaml, refuses none.
"""

from __future__ import annotations

import itertools
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
from operations.demo import (
    DOWN,
    FIRST_EMAIL,
    MARK,
    REFUSED,
    SHOP,
    OtherOrders,
    Past,
    check_only_demo,
    connect_shop,
    place_and_move,
    place_one,
    place_past,
    save_brands,
    sum_past,
)
from orders.models import Order
from runtime.telemetry import context
from shop_connections.models import ShopConnection

MAILPIT_PORT = 8025
#: How many orders of the past a transaction writes.
AT_ONCE = 60
#: How long the token of `--one` is valid.
TOKEN_DAYS = 7
#: Due e-mails without a failure.
UNTRIED = Q(status__in=DUE_STATES, errors=[], next_attempt_at__lte=Now())


@contextmanager
def log_above(level: int) -> Iterator[None]:
    """Log nothing up to this level. Each order would log lines between those of the command."""
    before = logging.root.manager.disable
    logging.disable(max(before, level))
    try:
        yield
    finally:
        logging.disable(before)


class Command(BaseCommand):
    help = (
        "Fill the running stack with two shops, a month of orders with parcels, an outage, dead letters and a"
        " connection in trial. One order in ten is of now. Exit as soon as each e-mail is sent, is a dead"
        " letter, or waits for a retry. Count the e-mails by state and print ten things to click. "
        "A database with orders that no demo made is refused. "
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
        parser.add_argument(
            "--orders", type=int, help="number of orders (default 300, or none after an earlier demo)"
        )
        parser.add_argument("--wait", type=float, default=60, help="seconds to wait at most (default 60)")

    @log_above(logging.INFO)
    def handle(self, *args: Any, is_one: bool, orders: int | None, wait: float, **options: Any) -> None:
        if is_one:
            if orders is not None:
                raise CommandError("--one does not allow --orders.")
            self.place_one()
            return
        if orders is not None and not 1 <= orders <= 100_000:
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

    def place(self, *, orders: int | None, wait: float) -> None:
        """Place orders. Wait for at most `wait` seconds until each e-mail ended or waits for a retry.

        Without a number, place 300, but none if an earlier demo did.
        """
        mailbox = find_mailbox()
        try:
            check_only_demo()
        except OtherOrders as error:
            raise CommandError(str(error)) from error
        if mailbox:
            add_faults(mailbox)
        if orders is None and Order.objects.filter(
            correlation_id__startswith=MARK, reference__startswith="D-"
        ):
            self.stdout.write("An earlier demo filled this database. With --orders you get more orders.")
            self.stdout.write(next_steps(mailbox))
            return
        orders = 300 if orders is None else orders
        run, past = new_run(), Past.read()
        count = orders * 9 // 10
        emails = EmailNotification.objects.filter(correlation_id=run)
        busy = emails.filter(UNTRIED | Q(status=Status.PROCESSING))
        bars = Progress(transient=True, disable=not self.stdout.isatty())
        with bars, context.working_for(context.Context(run)):
            save_brands()
            numbers = iter(bars.track(range(count), description="Orders of the past month written"))
            while chunk := list(itertools.islice(numbers, AT_ONCE)):
                with (
                    log_above(logging.ERROR),
                    transaction.atomic(),
                ):  # the past's dead letters need no log lines
                    for number in chunk:
                        place_past(number, of=count, past=past)
            if count:
                sum_past(past)
            for number in bars.track(range(orders - count), description="Orders placed and changed"):
                place_and_move(number)
            shop = connect_shop()
            total, deadline = emails.count(), time.monotonic() + wait
            handled = bars.add_task("E-mails handled", total=total)
            while (left := busy.count()) and time.monotonic() < deadline:
                bars.update(handled, completed=total - left)
                time.sleep(0.2)
        since = f", {count:,} of them since {past.since:%d %B}" if count else ""
        self.stdout.write(f"{orders:,} {'order' if orders == 1 else 'orders'} placed and changed{since}.")
        for line in count_ends(emails):
            self.stdout.write(line)
        if shop is None:
            self.stdout.write("No shop is connected, because CONNECTION_KEY is not set.")
        self.stdout.write(next_steps(mailbox))
        self.stdout.write(
            f"The rows of this run and the log lines of its e-mails have the correlation id {run}."
        )


def add_faults(mailbox: str) -> None:
    """Let the mailbox refuse some recipients, unless it does since an earlier demo."""
    url = f"{mailbox}/control/faults"
    present = requests.get(url, timeout=5).json()
    for recipient, status, message in ((REFUSED, 400, "mailbox is full"), (DOWN, 503, "")):
        fault: dict[str, str | int] = {
            "kind": "status",
            "status": status,
            "to": f"^{recipient}-",
            "message": message,
        }
        if not any(fault.items() <= existing.items() for existing in present):
            requests.post(url, json=fault, timeout=5).raise_for_status()


def count_ends(emails: QuerySet[EmailNotification]) -> Iterator[str]:
    """Yield one line for each end that an e-mail can have, the most frequent first."""
    counts = Counter(_end(status, bool(errors)) for status, errors in emails.values_list("status", "errors"))
    for (singular, plural), count in counts.most_common():
        yield f"{count:6,} e-mail {singular}" if count == 1 else f"{count:6,} e-mails {plural}"


def _end(status: str, has_failed: bool) -> tuple[str, str]:
    shown = LABELS[Status.FAILED if status == Status.PENDING and has_failed else status]
    return shown.singular, shown.plural


def next_steps(mailbox: str) -> str:
    """Return what to open and click now. `mailbox` is the bundled mailbox's URL, or "" for Mailpit."""
    web, told = "", f"port {MAILPIT_PORT}: the mailbox, which is Mailpit and refuses no e-mail"
    if mailbox:
        address = urlsplit(mailbox)
        web = f"{address.scheme}://{address.hostname}:{(address.port or 1) - 1}"
        if not _ask(f"{web}/readyz"):  # `make run` took another port for the mailbox than the one after PORT
            web = ""
        told = (
            f"{mailbox}/  the mailbox: it refuses the addresses {REFUSED}-…, and answers 503 for {DOWN}-….\n"
            f"{'':5}Click Heal there, then Resend all on the page of causes. Those to {DOWN}-… leave at their"
            " next retry"
        )
    places = [
        (
            f"{reverse('admin:index')}?range=day",
            "the first page: a month of two shops, with an outage some hours ago",
        ),
        (reverse("admin:notifications_emailnotification_causes"), "the dead letters by cause"),
        *_pages(),
        (reverse("admin:providers"), "the providers"),
        (
            reverse("admin:notifications_emailtext_page", args=[FIRST_EMAIL, "en"]),
            "a text, to change a sentence",
        ),
        (reverse("docs"), "the API, which you can try"),
    ]
    lines = [*(f"{web}{path}  {words}" for path, words in places), told]
    numbered = "\n".join(f"{number:2}.  {line}" for number, line in enumerate(lines, start=1))
    password = " (of `make run`: user admin, password admin)" if mailbox else ""
    return f"\nOpen{password}:\n{numbered}\n"


def _pages() -> Iterator[tuple[str, str]]:
    """Yield the pages of single rows, as far as there are such rows, with their words."""
    dead = EmailNotification.objects.filter(status=Status.DEAD_LETTERED, correlation_id__startswith=MARK)
    if mail := dead.order_by("-id").first():
        yield reverse("admin:notifications_emailnotification_change", args=[mail.id]), "a dead letter"
    well = Order.objects.filter(correlation_id__startswith=MARK, locale__startswith="en").exclude(
        id__in=dead.values("order_id")
    )
    waited = EmailNotification.objects.filter(status=Status.SENT).exclude(errors=[])
    for words, orders in (
        (
            "the timeline of an order whose e-mail waited for the provider",
            well.filter(id__in=waited.values("order_id")),
        ),
        (
            "an order that left in two parcels, of which one came back",
            well.filter(shipment__returned_at__isnull=False),
        ),
    ):
        if order := orders.order_by("-created_at").first():
            yield reverse("admin:orders_order_change", args=[order.id]), words
    if shop := ShopConnection.objects.filter(source=SHOP).first():
        path = reverse("admin:connections_shopconnection_change", args=[shop.id])
        yield path, "a connection in trial, with the e-mails that it withholds"


def new_run() -> str:
    """Return a correlation id for the rows of this run."""
    return f"{MARK}{context.new_correlation_id()[:8]}"


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
