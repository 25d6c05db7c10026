"""`manage.py follow_wal`: send e-mails within milliseconds of the commit that makes them due. No broker."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError, ProgrammingError

from notifications.delivery import drain
from notifications.delivery.follow import WATCHED, follower
from notifications.delivery.woken import WokenDrain
from outbox.process.loop import stop_on_signals
from outbox.process.start import wait_for_postgres
from outbox.telemetry.metrics_server import watch
from outbox.wal import publication
from outbox.wal.stream import NotReady


class Command(BaseCommand):
    help = (
        "Follows PostgreSQL's write-ahead log (REPLICATION_DATABASE_URL) and drains e-mails whenever any"
        " client's commit makes one due. One process follows; others wait to take over."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--make-publications",
            action="store_true",
            help="create the publications as the tables' owner (PARTITION_DATABASE_URL), and exit",
        )

    def handle(self, *args: Any, make_publications: bool, **options: Any) -> None:
        """Run until SIGTERM or SIGINT. Then give back the rows that are not begun, and return."""
        if make_publications:
            self._make_publications()
            return
        watch("follower")
        stopped = stop_on_signals(also=drain.stop)
        wait_for_postgres(pause=stopped.wait)
        if stopped.is_set():
            return
        emails = WokenDrain(stopped=stopped)
        following = follower(emails)
        try:
            following.check()
        except NotReady as error:
            raise CommandError(str(error)) from error
        with emails:
            following.run(stopped=stopped)

    def _make_publications(self) -> None:
        try:
            made = list(publication.make(WATCHED))
        except ProgrammingError as error:
            raise CommandError(
                "PARTITION_DATABASE_URL must have the role that owns the tables and may create in the"
                f" database (GRANT CREATE ON DATABASE … TO …): {error}"
            ) from error
        except OperationalError as error:
            raise CommandError(f"A lock was not free; run it again. {error}") from error
        for name in made:
            self.stdout.write(f"made {name}")
        if not made:
            self.stdout.write("every publication exists")
