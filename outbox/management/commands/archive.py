"""`manage.py archive find`: find archived rows by an address, an order's id or columns' values."""

from __future__ import annotations

import datetime as dt
import json
import sys
import uuid
from collections.abc import Iterable
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from outbox.retention.archives.search import Found, Search
from outbox.retention.partitions.partitions import model_of, partitioned_models

_DEFAULT = "email_notifications"


class Command(BaseCommand):
    help = "Find rows in the archives. Print one JSON line for each, with all values as text."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        find = verbs.add_parser("find", help="find the e-mails and events of a person or an order")
        find.add_argument(
            "what",
            nargs="+",
            metavar="WHAT",
            help="an address, an order's id, or COLUMN=VALUE … (all must match, in any case)",
        )
        find.add_argument(
            "--table",
            choices=[model._meta.db_table for model in partitioned_models()],
            help=f"search only this table (default: {_DEFAULT} with COLUMN=VALUE, else all tables)",
        )
        find.add_argument(
            "--since",
            type=_date,
            default=dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
            help="a date; skip older archives",
        )

    def handle(self, *args: Any, what: list[str], table: str | None, since: dt.datetime, **_: Any) -> None:
        search = Search(since=since, report=self._report)
        for record, row in _search(search, what, table):
            if table in (None, record.table):
                self.stdout.write(json.dumps({"archive": record.name, **row}, ensure_ascii=False))
        if search.failed:
            raise CommandError("\n".join(search.failed), returncode=1)

    def _report(self, step: str, **facts: Any) -> None:
        if step == "bytes":
            return
        if step == "not indexed" or sys.stderr.isatty():
            told = " ".join(str(value) for value in facts.values())
            self.stderr.write(f"{step}: {told}")


def _search(search: Search, what: list[str], table: str | None) -> Iterable[Found]:
    if len(what) == 1 and "=" not in what[0]:
        if "@" in what[0]:
            return search.by_address(address=what[0])
        try:
            return search.by_owner(owner_id=uuid.UUID(what[0]))
        except ValueError:
            raise CommandError(f"{what[0]} is not an address, order id or COLUMN=VALUE") from None
    model = model_of(table=table or _DEFAULT)
    conditions = dict(one.partition("=")[::2] for one in what)
    columns = {str(field.column) for field in model._meta.concrete_fields}
    if unknown := sorted(set(conditions) - columns):
        raise CommandError(
            f"{model._meta.db_table} has no column {', '.join(unknown)}. Use {', '.join(sorted(columns))}.",
            returncode=2,
        )
    return search.by_columns(model=model, conditions=conditions)


def _date(text: str) -> dt.datetime:
    return dt.datetime.combine(dt.date.fromisoformat(text), dt.time(), dt.UTC)
