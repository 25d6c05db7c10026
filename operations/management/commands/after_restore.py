"""`manage.py after_restore --log FILE…`: compare a restored database with the logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from operations.after_restore import NotPaused, reconcile
from operations.log_files import Counts, read_log_lines
from operations.management.commands.pause import moment


class Command(BaseCommand):
    help = (
        "Compare a restored database with the logs since that time. Run this before manage.py resume. It "
        "settles the e-mails and events that the logs prove sent. Other e-mails that may have been sent "
        "become dead letters, so that a person decides. It prints each change that the database lost as one "
        "line of JSON."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--log",
            nargs="+",
            required=True,
            type=Path,
            metavar="FILE",
            help="files with JSON lines of any process, plain, .gz or .zst, in any order",
        )
        parser.add_argument(
            "--since",
            type=moment,
            metavar="TIME",
            help="the moment to which the database was restored (default: that of pause --restored-to)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        counts = Counts()
        try:
            lines = read_log_lines(paths=options["log"], counts=counts)
            report = reconcile(lines=lines, since=options["since"])
        except (NotPaused, OSError) as error:
            raise CommandError(str(error)) from error
        for change in report.lost:
            self.stdout.write(json.dumps(change))
        unreadable = counts.unreadable + report.malformed
        self.stderr.write(
            f"{counts.lines} lines read, {unreadable} of them unreadable. E-mails found sent: {report.sent}. "
            f"Events found published: {report.published}. E-mails held for a person: {report.held}. "
            f"Changes that the database lost: {report.lost_count}."
        )
