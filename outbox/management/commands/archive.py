"""`manage.py archive find`: read archives from end to end for the rows of an order, an address or an id."""

from __future__ import annotations

import datetime as dt
import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from outbox.retention import archive, partitions


class Command(BaseCommand):
    help = "Finds rows in the archives; prints one JSON line for each, all values as text."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        find = verbs.add_parser("find", help="rows for which every COLUMN=VALUE holds, whatever the case")
        find.add_argument(
            "conditions", nargs="+", metavar="COLUMN=VALUE", help="recipient_email=a@example.com"
        )
        find.add_argument(
            "--table",
            default="email_notifications",
            choices=[model._meta.db_table for model in partitions.partitioned_models()],
        )
        find.add_argument(
            "--since",
            type=_date,
            default=dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
            help="a date: leaves out older archives",
        )

    def handle(
        self, *args: Any, table: str, conditions: list[str], since: dt.datetime, **options: Any
    ) -> None:
        wanted = [tuple(condition.partition("=")[::2]) for condition in conditions]
        for record in archive.archived_partitions(table=table, since=since):
            self.stderr.write(f"reading {record.name}", ending="\n") if sys.stderr.isatty() else None
            found = archive.find(
                record=record,
                wanted=lambda row: all(row.get(name, "").lower() == value.lower() for name, value in wanted),
            )
            for row in found:
                self.stdout.write(json.dumps({"archive": record.name, **row}, ensure_ascii=False))


def _date(text: str) -> dt.datetime:
    return dt.datetime.combine(dt.date.fromisoformat(text), dt.time(), dt.UTC)
