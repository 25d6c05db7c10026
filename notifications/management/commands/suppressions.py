"""`manage.py suppressions load FILE`: suppress what another provider's list of bounces and complaints has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import structlog
from django.core.management.base import BaseCommand, CommandError, CommandParser

from notifications.suppression_files import Summary, UnknownFile, load_file
from runtime.audit import command_actor

log = structlog.get_logger(__name__)


class Command(BaseCommand):
    help = "Suppress the addresses that bounced or complained at a provider, from its exported list."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        load = verbs.add_parser("load", help="of SendGrid, Amazon SES, Postmark or Mailgun, as CSV or JSON")
        load.add_argument("file", type=Path, metavar="FILE")
        load.add_argument("--dry-run", action="store_true", help="only say what would be suppressed")

    def handle(self, *_: Any, file: Path, dry_run: bool, **options: Any) -> None:
        try:
            summary = load_file(file, by=command_actor(), dry_run=dry_run)
        except (UnknownFile, OSError) as error:
            raise CommandError(str(error)) from None
        if not dry_run:
            log.info("suppressions loaded", provider=summary.provider, new=summary.new)
        self.stdout.write("\n".join(_lines(summary, dry_run=dry_run)))


def _lines(summary: Summary, *, dry_run: bool) -> list[str]:
    """Say what the file had and what became of it, without an address."""
    counts = " and ".join(f"{count:,} {_WORDS[reason]}" for reason, count in sorted(summary.reasons.items()))
    total = sum(summary.reasons.values())
    done = "would be suppressed" if dry_run else "are suppressed now"
    lines = [
        f"{summary.provider}: {counts or 'no bounces or complaints'}.",
        f"{summary.new:,} addresses {done}, {total - summary.new:,} were before.",
    ]
    lines += [f"Left out: {count:,} {word}." for word, count in sorted(summary.left_out.items())]
    for what, count in sorted(summary.unusable.items()):
        first = summary.first_unusable[what]
        more = " …" if count > len(first) else ""
        lines.append(f"Left out: {count:,} {what} (in {', '.join(map(str, first))}{more}).")
    return lines


_WORDS = {"hard_bounce": "bounces", "complaint": "complaints"}
