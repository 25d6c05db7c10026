"""`manage.py schemas`: compare the schemas of events with the last release's, or keep those of a release."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from outbox.events import schemas


class Command(BaseCommand):
    help = "Refuses a change of an event's schema that breaks what the last release promised."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--keep", metavar="VERSION", help="copy the schemas into docs/schemas/VERSION")

    def handle(self, *args: Any, keep: str | None, **options: Any) -> None:
        last = schemas.last_release()
        if last is None:
            raise CommandError(f"{schemas.RELEASED} has the schemas of no release.")
        if found := list(schemas.breaks_since(last)):
            lines = "\n".join(found)
            raise CommandError(f"{lines}\nThese break {last.name}. Publish or take a new version beside it.")
        if keep:
            count = schemas.keep(keep)
            self.stdout.write(f"{count} schemas kept in docs/schemas/{keep}.")
        else:
            self.stdout.write(f"{len(schemas.find_schemas())} schemas break nothing of {last.name}.")
