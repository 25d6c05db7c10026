"""`manage.py status`: show the queues, recent rates and what needs a person (operations.status)."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, InterfaceError
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from notifications.states.transitions import UNFINISHED
from operations import rules
from operations.status import Document, read_status
from runtime.database.away import explain_silence
from runtime.lateness import lateness


class Command(BaseCommand):
    help = "Show the queues, the last minutes, providers, lags, partitions, and what needs a person."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one line of JSON")
        parser.add_argument(
            "--rules",
            choices=("check", "write"),
            help="compare or write the alert rules and docs of the declared conditions and metrics",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["rules"]:
            self._rules(write=options["rules"] == "write")
            return
        lateness.watch()
        try:
            status = read_status()
        except (DatabaseError, InterfaceError) as error:
            trouble = explain_silence(error)
            text = str(error).strip().partition("\n")[0]
            raise CommandError(
                f"{trouble.what}, and the API answers 503 (DatabaseDown): {trouble.do}. {text}"
            ) from error
        if options["json"]:
            self.stdout.write(json.dumps(status))
            return
        show(Console(file=self.stdout, highlight=False), status)  # type: ignore[arg-type]  # it has a `write`

    def _rules(self, *, write: bool) -> None:
        for path, text, made in rules.files():
            if text != made and not write:
                raise CommandError(f"{path} differs. Run `manage.py status --rules write`.")
            if text != made:
                path.write_text(made, encoding="utf-8")
                self.stdout.write(f"{path} is written.")


def show(console: Console, status: Document) -> None:
    console.print(f"orderpost {status['version']} at {status['at'][:19].replace('T', ' ')} UTC")
    for sentence, alert in zip(status["needs"], status["alerts"], strict=True):
        console.print(f"  ! {sentence} ({alert})", style="bold red", markup=False, soft_wrap=True)
    if not status["needs"]:
        console.print("  nothing needs a person", style="green")
    _table(
        console,
        "stuck orders",
        ["state", "orders", "the oldest for"],
        [
            [state, stuck["orders"], age(stuck["oldest_seconds"])]
            for state, stuck in status["stuck_orders"].items()
        ],
    )
    _show_emails(console, status["emails"], status["rates"])
    _show_providers(console, status["providers"])
    _show_events(console, status)
    _show_upkeep(console, status)


def _show_emails(console: Console, emails: Document, rates: Document) -> None:
    _table(
        console,
        "e-mails",
        [
            *(status.label.lower() for status in UNFINISHED),
            "failed, held",
            "oldest unfinished",
            "longest due",
        ],
        [
            [
                *(emails[name] for name in (*UNFINISHED, "held")),
                age(emails["unfinished_seconds"]),
                age(emails["due_seconds"]),
            ]
        ],
    )
    _table(
        console,
        f"the last {rates['minutes']} minutes and this one",
        [
            "orders placed",
            "e-mails sent",
            "commit → sent p50",
            "p99",
            "delivered",
            "bounced",
            "failed attempts",
        ],
        [
            [
                rates["orders_placed"],
                rates["emails_sent"],
                age(rates["commit_to_sent_p50"]),
                age(rates["commit_to_sent_p99"]),
                *(rates[name] for name in ("delivered", "bounced", "failed_attempts")),
            ]
        ],
    )


def _show_events(console: Console, status: Document) -> None:
    events = status["events"]
    _table(
        console,
        "events out and in",
        ["unpublished", "oldest", "blocked keys", "dead", "inbound dead letters"],
        [
            [
                events["unpublished"],
                age(events["unpublished_seconds"]),
                *(events[name] for name in ("blocked_keys", "dead", "dead_inbound")),
            ]
        ],
    )
    _table(
        console,
        "events that our consumers have not processed",
        ["topic", "events", "oldest"],
        [
            [consumer["topic"], consumer["events"], age(consumer["seconds"])]
            for consumer in status["consumers"] or []
        ],
    )


def _show_providers(console: Console, providers: Sequence[Mapping[str, Any]] | None) -> None:
    _table(
        console,
        "providers",
        ["provider", "state", "since", "why", "sent", "failed", "webhook", "unmatched"],
        [
            [
                provider["provider"],
                provider["words"],
                age(provider["since_seconds"]),
                textwrap.shorten(provider["reason"], 60, placeholder=" …"),
                provider["sent"],
                provider["failed"],
                age(provider["webhook_seconds"]),
                provider["unmatched"],
            ]
            for provider in providers or []
        ],
    )


def _show_upkeep(console: Console, status: Document) -> None:
    _table(
        console,
        "processes",
        ["kind", "process", "host", "last beat", "release"],
        [
            [row["kind"], row["process"], row["host"], f"{age(row['seconds'])} ago", row["release"]]
            for row in status["processes"]
        ],
    )
    _table(
        console,
        "last heartbeats",
        list(status["jobs"]),
        [[age(seconds) for seconds in status["jobs"].values()]] if status["jobs"] else [],
    )
    _table(
        console,
        "partitions",
        ["table", "made ahead", "days ahead", "cold files overdue", "size"],
        [
            [
                table["table"],
                table["ahead"],
                table["days_ahead"],
                table["archive_overdue"],
                decimal(table["bytes"]),
            ]
            for table in status["partitions"]
        ],
    )
    database = status["database"]
    _table(
        console,
        "PostgreSQL",
        ["size", *database["by_state"], "connections left", "oldest transaction", "search by parts"],
        [
            [
                decimal(database["bytes"]),
                *database["by_state"].values(),
                database["left"],
                age(database["oldest_transaction_seconds"]),
                "yes" if database["finds_parts"] else "no: pg_trgm is missing",
            ]
        ],
    )


def _table(console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    lines = [[str(value) for value in row] for row in rows]
    words = [_longest_word([column, *cells]) for column, *cells in zip(columns, *lines, strict=True)]
    console.print()
    if not lines:
        console.print(f"{title}: none, or the broker does not answer")
    elif sum(words) + 3 * len(words) <= console.width:
        table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, show_edge=False)
        for column, width in zip(columns, words, strict=True):
            table.add_column(column, min_width=width)  # or rich would break a word
        for line in lines:
            table.add_row(*line)
        console.print(table)
    else:  # a terminal of 80 columns, and a long name of a host or of jobs
        console.print(title, style="bold")
        for line in lines:
            pairs = ", ".join(f"{column} {value}" for column, value in zip(columns, line, strict=True))
            console.print(
                textwrap.fill(
                    pairs,
                    console.width,
                    initial_indent="  ",
                    subsequent_indent="    ",
                    break_long_words=False,
                    break_on_hyphens=False,
                ),
                markup=False,
                soft_wrap=True,
            )


def _longest_word(cells: Sequence[str]) -> int:
    return max((len(word) for cell in cells for word in cell.split()), default=0)


def age(seconds: float | None) -> str:
    """Write a duration for a person.

    >>> [age(one) for one in (None, 0.25, 12.34, 200, 8000, 200000)]
    ['-', '0.25 s', '12 s', '3 min', '2.2 h', '2.3 days']
    """
    if seconds is None:
        return "-"
    for limit, unit, factor in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            value = seconds / factor
            return f"{value:.2g} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return f"{seconds / 86400:.1f} days"
