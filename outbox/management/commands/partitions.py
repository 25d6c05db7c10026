"""`manage.py partitions list | ensure`: what there is and what is missing, by hand."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from outbox import partitions


class Command(BaseCommand):
    """See the module."""

    help = "Lists the partitions of every partitioned table, or makes the next ones. Safe to run at any time."

    def add_arguments(self, parser: CommandParser) -> None:
        """Two verbs."""
        verbs = parser.add_subparsers(dest="verb", required=True)
        verbs.add_parser("list", help="one line for each attached partition: table, name, [since, until)")
        ensure = verbs.add_parser("ensure", help="make what is missing")
        ensure.add_argument("--ahead", type=int, default=partitions.AHEAD, help="how many intervals ahead")

    def handle(self, *args: Any, verb: str, ahead: int = 0, **options: Any) -> None:
        """Do the verb."""
        if verb == "ensure":
            made = list(partitions.ensure_all(ahead=ahead))
            self.stdout.write("\n".join(made) if made else "Nothing was missing.")
            return
        for model in partitions.partitioned_models():
            for one in partitions.attached(model=model, using="direct"):
                self.stdout.write(
                    f"{model._meta.db_table}\t{one.name}\t{one.since:%Y-%m-%d}\t{one.until:%Y-%m-%d}"
                )
