"""`manage.py demo`: place orders on a stack with a mailbox, or fill the tables with a history (`--days`).

`--one` prints a token and an order for a shell: `eval "$(.venv/bin/python manage.py demo --one)"`.

A mailbox is a provider that delivers nothing. That of `make run`, the sandbox, refuses some recipients.
Mailpit, the mailbox of docker/compose.yaml, refuses none.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from operator import attrgetter
from typing import Any
from urllib.parse import urlsplit

import requests
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections, transaction
from django.db.models import Model, Q, QuerySet
from django.db.models.expressions import DatabaseDefault
from django.urls import reverse
from rich.progress import Progress

from notifications.models import EmailNotification
from notifications.providers.sending import api_url
from orders.demo import (
    DOMAIN,
    DOWN,
    MARK,
    REFUSED,
    History,
    make_history,
    outage_end,
    place_and_move,
    place_one,
)
from orders.models import Order
from outbox.database.clock import read_database_time
from outbox.database.partitioned import PartitionedModel
from outbox.delivery.rows.outcomes import DUE_STATES, Status
from outbox.models import OutboxEvent, TrafficSum
from outbox.retention.partitions import partitions
from outbox.telemetry import context
from outbox.traffic import minutes
from outbox.traffic.summed import Window

MAILPIT_PORT = 8025
#: How long the token of `--one` is valid.
TOKEN_DAYS = 7
#: E-mails without an attempt. Every failed attempt writes `last_error`, but not each uses up a retry.
UNTRIED = Q(status__in=DUE_STATES, last_error="")
#: The demo's words for one e-mail and for several, by state.
ENDS: dict[str, tuple[str, str]] = {
    Status.SENT: ("e-mail is sent", "e-mails are sent"),
    Status.DEAD_LETTERED: ("e-mail is a dead letter", "e-mails are dead letters"),
    Status.SUPPRESSED: ("e-mail is suppressed", "e-mails are suppressed"),
    Status.DISCARDED: ("e-mail is discarded", "e-mails are discarded"),
    Status.PROCESSING: ("e-mail is being sent", "e-mails are being sent"),
}
RETRIED = ("e-mail waits for a retry", "e-mails wait for a retry")
WAITING = ("e-mail was not tried yet", "e-mails were not tried yet")


@contextmanager
def only_warnings() -> Iterator[None]:
    """Log nothing below a warning, because each order would log lines between those of the command."""
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
        "With --one, place one order and print it and a new token as lines for a shell. "
        "With --days, write a history for the admin's charts and lists instead."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--one",
            action="store_true",
            help=f"place one order; print `export TOKEN=…` (for {TOKEN_DAYS} days) and `export ORDER=…`",
        )
        parser.add_argument("--orders", type=int, help="number of orders (default 300; with --days 20000)")
        parser.add_argument("--wait", type=float, default=60, help="seconds to wait at most (default 60)")
        parser.add_argument("--days", type=int, help="days of the history to write (1 to 90)")
        parser.add_argument(
            "--force", action="store_true", help="write the history even next to real orders or in production"
        )

    @only_warnings()
    def handle(
        self,
        *args: Any,
        one: bool,
        orders: int | None,
        wait: float,
        days: int | None,
        force: bool,
        **options: Any,
    ) -> None:
        if one:
            if orders is not None or days is not None:
                raise CommandError("--one allows neither --orders nor --days.")
            self.place_one()
            return
        orders = orders or (20_000 if days else 300)
        if not 1 <= orders <= 100_000:
            raise CommandError("--orders must be from 1 to 100000.")
        if days is None:
            self.place(orders=orders, wait=wait)
            return
        if not 1 <= days <= 90:
            raise CommandError("--days must be from 1 to 90.")
        if Order.objects.filter(correlation_id=MARK).exists():
            raise CommandError("The demo's history already exists. `make clean` deletes all local data.")
        if not force and settings.HTTPS:
            raise CommandError("This looks like production: HTTPS is on. --force writes demo data anyway.")
        if not force and Order.objects.exclude(correlation_id__startswith="demo-").exists():
            raise CommandError("The database has real orders. --force writes demo data next to them.")
        began = time.monotonic()
        history = write_history(orders=orders, days=days)
        self.stdout.write(
            f"{counted(len(history[Order]), 'order')}, {counted(len(history[EmailNotification]), 'e-mail')},"
            f" {counted(len(history[OutboxEvent]), 'event')}"
            f" of the last {'day' if days == 1 else f'{days} days'}, in {time.monotonic() - began:.0f} s."
            " Rows whose partition would be detached by now are left out."
            f"\nAll rows have the correlation id {MARK}, references DEMO-… and addresses of {DOMAIN}."
        )

    def place_one(self) -> None:
        """Place one order. Print a new token and the order's id as lines that a shell can evaluate."""
        find_mailbox()
        token = StringIO()
        with context.working_for(context.Context(new_run())), transaction.atomic():
            order = place_one()
            create = ("tokens", "create", "demo", "--scope", "all", "--expires-days", str(TOKEN_DAYS))
            call_command(*create, stdout=token, stderr=StringIO())
        self.stdout.write(f"export TOKEN={token.getvalue().strip()}\nexport ORDER={order.id}")

    def place(self, *, orders: int, wait: float) -> None:
        """Place orders. Wait for at most `wait` seconds until each e-mail ended or waits for a retry."""
        mailbox = find_mailbox()
        for recipient, status in ((REFUSED, 400), (DOWN, 503)) if mailbox else ():
            fault: dict[str, str | int] = {"kind": "status", "status": status, "to": f"^{recipient}-"}
            requests.post(f"{mailbox}/control/faults", json=fault, timeout=5).raise_for_status()
        run = new_run()
        mails = EmailNotification.objects.filter(correlation_id=run)
        busy = mails.filter(UNTRIED | Q(status=Status.PROCESSING))
        bars = Progress(transient=True, disable=not self.stdout.isatty())
        with bars, context.working_for(context.Context(run)):
            for number in bars.track(range(orders), description="Orders placed and changed"):
                place_and_move(number)
            total, deadline = mails.count(), time.monotonic() + wait
            handled = bars.add_task("E-mails handled", total=total)
            while (left := busy.count()) and time.monotonic() < deadline:
                bars.update(handled, completed=total - left)
                time.sleep(0.2)
        self.stdout.write(f"{counted(orders, 'order')} placed and changed.")
        for line in count_ends(mails):
            self.stdout.write(line)
        self.stdout.write(next_steps(mailbox))
        self.stdout.write(
            f"The rows of this run and the log lines of its e-mails have the correlation id {run}."
        )


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which gets an s unless the number is 1."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def count_ends(mails: QuerySet[EmailNotification]) -> Iterator[str]:
    """Yield one line for each end that an e-mail can have, the most frequent first."""
    counts = Counter(_end(status, error) for status, error in mails.values_list("status", "last_error"))
    for (one, many), count in counts.most_common():
        yield f"{count:6,} {one if count == 1 else many}"


def _end(status: str, error: str) -> tuple[str, str]:
    if status in DUE_STATES:
        return RETRIED if error else WAITING
    return ENDS[status]


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


def write_history(*, orders: int, days: int) -> History:
    """Write the history of the last `days` and its sums, without rows whose partition would be detached."""
    now = read_database_time()
    oldest = {model: _oldest(model, days=days) for model in partitions.partitioned_models()}
    history = make_history(orders=orders, days=days, now=now, oldest=oldest)
    with transaction.atomic():
        for model, rows in history.items():
            _copy(model, sorted(rows, key=attrgetter("id")))
    with connections["owner"].cursor() as cursor:
        cursor.execute("VACUUM ANALYZE orders, email_notifications, outbox_events")
    minute = now.replace(second=0, microsecond=0)
    hour, past = minute.replace(minute=0), dt.timedelta(days=days)
    _sum(TrafficSum.HOUR, hour - past, hour + minutes.HOUR, now=now)
    _sum(TrafficSum.MINUTE, minute - min(minutes.KEEP_MINUTES, past), minute, now=now)
    return history


def _copy(model: type[Model], rows: Sequence[Model]) -> None:
    """Write rows by COPY, because INSERT takes more than twice the time."""
    if not rows:
        return
    connection, everything = connections["default"], model._meta.concrete_fields
    fields = [one for one in everything if not isinstance(getattr(rows[0], one.attname), DatabaseDefault)]
    columns = ", ".join(connection.ops.quote_name(str(field.column)) for field in fields)
    statement = f"COPY {model._meta.db_table} ({columns}) FROM STDIN"
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            values = [field.get_db_prep_save(getattr(row, field.attname), connection) for field in fields]
            copy.write_row(values)


def _oldest(model: PartitionedModel, *, days: int) -> dt.datetime:
    """Make the partitions of the last `days` that would still be attached. Return the start of the oldest."""
    back = days + 1 if model.retention.interval == "day" else days // 28 + 1
    partitions.make_missing(model=model, using="owner", behind=back, ahead=0)
    return partitions.attached(model=model, using="owner")[0].since


def _sum(span: int, since: dt.datetime, until: dt.datetime, *, now: dt.datetime) -> None:
    """Write the sums of the history, with an open breaker during its outages. `span` is in seconds."""
    sums = minutes.read_window(Window(since=since, until=until, span=span))
    breaker = f"open:{settings.EMAIL_PROVIDERS[0]}"
    for start, one in sums.items():
        minutes_open = span // 60 if outage_end(start, now=now) else 0
        sums[start] = dataclasses.replace(one, samples={breaker: minutes_open})
    minutes.store(span, sums)
