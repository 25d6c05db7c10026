"""`manage.py resume`: end a pause."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from notifications.wake import waker
from operations import pauses
from operations.management.commands.pause import add_parts, parts_of
from runtime.audit import command_actor
from runtime.progress import words_on_a_terminal

#: The longest wait for Valkey. Without it, the next poll sends.
WAKE_SECONDS = 2.0


class Command(BaseCommand):
    help = "End pauses of delivery, relay and consumers. Events continue within a second, e-mails at once."

    def add_arguments(self, parser: CommandParser) -> None:
        add_parts(parser)
        parser.add_argument(
            "--force", action="store_true", help="resume even if manage.py after_restore has not run"
        )

    @words_on_a_terminal()
    def handle(self, *args: Any, force: bool, **options: Any) -> None:
        parts = parts_of(options["part"], is_all=options["all"])
        try:
            resumed = pauses.resume(parts=parts, by=command_actor(), force=force)
        except pauses.NotReconciled as error:
            raise CommandError(f"Nothing was resumed: {error}.") from error
        waker.finish(seconds=WAKE_SECONDS)
        for part in parts:
            self.stdout.write(f"{part}: resumed" if part in resumed else f"{part}: was not paused")
