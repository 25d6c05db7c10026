"""`manage.py pause`: stop sending, publishing and consuming in all processes until `manage.py resume`."""

from __future__ import annotations

import datetime as dt
from argparse import ArgumentTypeError
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.dateparse import parse_datetime

from operations import pauses
from runtime.audit import command_actor
from runtime.models import Pause
from runtime.personal_data import AddressGiven
from runtime.progress import words_on_a_terminal


class Command(BaseCommand):
    help = (
        "Pause delivery, relay and consumers of all processes within seconds. Sends in flight are finished. "
        "The API keeps working, and e-mails and events wait in the database."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_parts(parser)
        parser.add_argument("--reason", default="", help="shown with the pause")
        parser.add_argument(
            "--restored-to",
            type=moment,
            metavar="TIME",
            help="the moment of a restored backup; resume then needs manage.py after_restore",
        )

    @words_on_a_terminal()
    def handle(self, *args: Any, **options: Any) -> None:
        restored_to = options["restored_to"]
        parts = parts_of(options["part"], is_all=options["all"])
        reason = options["reason"] or (
            f"restored to {restored_to:%Y-%m-%d %H:%M:%S%z}" if restored_to else ""
        )
        try:
            fresh = pauses.pause(parts=parts, reason=reason, by=command_actor(), restored_to=restored_to)
        except AddressGiven as error:
            raise CommandError(f"--reason: {error}") from None
        for part in parts:
            self.stdout.write(f"{part}: paused" if part in fresh else f"{part}: was paused already")


def add_parts(parser: CommandParser) -> None:
    """Add the arguments that `parts_of` takes."""
    parser.add_argument("part", nargs="*", metavar="PART", help=", ".join(Pause.Part.values))
    parser.add_argument("--all", action="store_true", help="all parts")


def parts_of(names: list[str], *, is_all: bool) -> list[str]:
    """Return the named parts, or all. Raise `CommandError` for an unknown name, and unless one is given."""
    if bool(names) == is_all:
        raise CommandError(f"Name parts ({', '.join(Pause.Part.values)}), or use --all for all of them.")
    if unknown := sorted(set(names) - set(Pause.Part.values)):
        raise CommandError(f"no such part: {', '.join(unknown)}. Use {', '.join(Pause.Part.values)}.")
    return names or list(Pause.Part.values)


def moment(text: str) -> dt.datetime:
    """Parse a time with a zone, such as `2026-11-21 20:15:00+00`. Raise `ArgumentTypeError`."""
    try:
        time = parse_datetime(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise ArgumentTypeError(f"{text!r} is not a time with a zone, such as 2026-11-21T20:15:00Z")
    return time
