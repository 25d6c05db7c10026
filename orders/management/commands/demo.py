"""`manage.py demo`: place orders on a stack with a mailbox, or fill the tables with a history (`--days`).

`--one` prints a token and an order for a shell: `eval "$(.venv/bin/python manage.py demo --one)"`.

A mailbox is a provider that delivers nothing. That of `make run`, the sandbox, refuses some recipients.
Mailpit, the mailbox of docker/compose.yaml, refuses none.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from collections import Counter
from collections.abc import Sequence
from io import StringIO
from operator import attrgetter
from typing import Any
from urllib.parse import urlsplit

import requests
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections, transaction
from django.db.models import Model
from django.db.models.expressions import DatabaseDefault
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


class Command(BaseCommand):
    help = (
        "Place and change orders on the running stack, wait for their e-mails and count them by state. "
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
        parser.add_argument("--wait", type=float, default=60, help="seconds to wait for e-mails (default 60)")
        parser.add_argument("--days", type=int, help="days of the history to write (1 to 90)")
        parser.add_argument(
            "--force", action="store_true", help="write the history even next to real orders or in production"
        )

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
            f"{len(history[Order]):,} orders, {len(history[EmailNotification]):,} e-mails,"
            f" {len(history[OutboxEvent]):,} events"
            f" of the last {days} days, in {time.monotonic() - began:.0f} s."
            " Rows whose partition would be detached by now are left out."
            f"\nAll rows have the correlation id {MARK}, references DEMO-… and addresses of {DOMAIN}."
        )

    def place_one(self) -> None:
        """Place one order. Print a new token and the order's id as lines that a shell can evaluate."""
        find_mailbox()
        token = StringIO()
        with context.working_for(context.Context(new_run())), transaction.atomic():
            order = place_one()
            call_command(
                "create_token",
                "demo",
                scope=["all"],
                expires_days=TOKEN_DAYS,
                stdout=token,
                stderr=StringIO(),
            )
        self.stdout.write(f"export TOKEN={token.getvalue().strip()}\nexport ORDER={order.id}")

    def place(self, *, orders: int, wait: float) -> None:
        """Place orders. Wait until each of their e-mails was tried once, for at most `wait` seconds."""
        mailbox = find_mailbox()
        for recipient, status in ((REFUSED, 400), (DOWN, 503)) if mailbox else ():
            fault: dict[str, str | int] = {"kind": "status", "status": status, "to": f"^{recipient}-"}
            requests.post(f"{mailbox}/control/faults", json=fault, timeout=5).raise_for_status()
        run = new_run()
        mails = EmailNotification.objects.filter(correlation_id=run)
        untried = mails.filter(status__in=(*DUE_STATES, Status.PROCESSING), retry_count=0)
        with Progress() as progress, context.working_for(context.Context(run)):
            for number in progress.track(range(orders), description="Orders placed and changed"):
                place_and_move(number)
            total, deadline = mails.count(), time.monotonic() + wait
            handled = progress.add_task("E-mails handled", total=total)
            while (left := untried.count()) and time.monotonic() < deadline:
                progress.update(handled, completed=total - left)
                time.sleep(0.2)
            progress.update(handled, completed=total - left)
        for state, count in Counter(mails.values_list("status", flat=True)).most_common():
            self.stdout.write(f"{count:6} e-mails are {state}")
        if mailbox:
            self.stdout.write(
                f"The admin lists the dead letters (addresses '{REFUSED}-…') under E-mail notifications."
                f" Failed e-mails ('{DOWN}-…') are retried.\nThe mailbox is {mailbox}/. Remove the faults"
                " there, then select the dead letters and resend them."
            )
        else:
            self.stdout.write("The mailbox is Mailpit, on port 8025. It refuses no e-mail.")
        self.stdout.write(f"All log lines and rows of this run have the correlation id {run}.")


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
