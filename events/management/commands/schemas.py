"""`manage.py schemas`: write the schemas of events, compare them with the last release's, or keep them."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from events.schemas import schemas


class Command(BaseCommand):
    help = "Fail if an event's schema is out of date, or incompatible with the last release's."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--write", action="store_true", help="write the schemas that are out of date")
        parser.add_argument("--keep", metavar="VERSION", help="copy the schemas into docs/schemas/VERSION")

    def handle(self, *args: Any, write: bool, keep: str | None, **options: Any) -> None:
        for path, text in schemas.outdated().items():
            name = path.relative_to(settings.BASE_DIR)
            if not write:
                raise CommandError(f"{name} is out of date. Run manage.py schemas --write.")
            path.write_text(text)
            self.stdout.write(f"{name} written.")
        schemas.find_schemas.cache_clear()
        last = schemas.last_release()
        if last is None:
            raise CommandError(
                f"{schemas.RELEASED} does not have the schemas of a release. Run this in a checkout."
            )
        if breaks := list(schemas.breaks_since(last)):
            lines = "\n".join(breaks)
            raise CommandError(f"{lines}\nThese break {last.name}. Add a new version and keep the old one.")
        if keep:
            count = schemas.keep(keep)
            self.stdout.write(f"{count} schemas kept in docs/schemas/{keep}.")
        else:
            self.stdout.write(f"{len(schemas.find_schemas())} schemas break nothing of {last.name}.")
