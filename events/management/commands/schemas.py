"""`manage.py schemas`: compare the schemas of events with the last release's, or keep a release's."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from events.schemas import schemas


class Command(BaseCommand):
    help = "Fail if an event's schema is incompatible with the last release's."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--keep", metavar="VERSION", help="copy the schemas into docs/schemas/VERSION")

    def handle(self, *args: Any, keep: str | None, **options: Any) -> None:
        last = schemas.last_release()
        if last is None:
            raise CommandError(
                f"{schemas.RELEASED} does not have the schemas of a release. Run this in a checkout."
            )
        if found := list(schemas.breaks_since(last)):
            lines = "\n".join(found)
            raise CommandError(f"{lines}\nThese break {last.name}. Add a new version and keep the old one.")
        if keep:
            count = schemas.keep(keep)
            self.stdout.write(f"{count} schemas kept in docs/schemas/{keep}.")
        else:
            self.stdout.write(f"{len(schemas.find_schemas())} schemas break nothing of {last.name}.")
