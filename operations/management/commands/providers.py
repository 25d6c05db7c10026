"""`manage.py providers try NAME --to ADDRESS | domain`: prove a provider's settings, or the sender's DNS.

Exit codes: 0 if all is right, 1 if something must be changed or cannot be read, 2 for a wrong argument.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from notifications.trials import default_event, start_trial
from operations.sender_domain import Unreadable, read_domain, sender_domain
from runtime import bulk_jobs
from runtime.models import BulkJob


class Command(BaseCommand):
    help = "Prove a provider by one real e-mail and its webhook, or read the DNS of the sender's domain."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        trial = verbs.add_parser("try", help="send one real e-mail, and name the setting that is wrong")
        trial.add_argument("name", metavar="NAME", help="one of EMAIL_PROVIDERS")
        trial.add_argument("--to", required=True, metavar="ADDRESS", help="your own address")
        trial.add_argument(
            "--event",
            default=default_event(),
            help="send its e-mail, with a sample order (default: %(default)s)",
        )
        domain = verbs.add_parser("domain", help="read SPF, DKIM, DMARC and alignment of DEFAULT_FROM_EMAIL")
        domain.add_argument(
            "--selector",
            action="append",
            default=[],
            help="of a DKIM key, as the provider shows it (repeatable)",
        )

    def handle(self, *args: Any, verb: str, **options: Any) -> None:
        if verb == "try":
            self._try(options["name"], options["to"], options["event"])
        else:
            self._show_domain(options["selector"])

    def _try(self, name: str, to: str, event: str) -> None:
        try:
            job = start_trial(provider=name, to=to, event=event)
        except ValueError as error:
            raise CommandError(str(error), returncode=2) from error
        shown = 0

        def show(*_: object, **__: object) -> None:
            nonlocal shown
            steps = BulkJob.objects.values_list("steps", flat=True).get(id=job.id) or []
            for step in steps[shown:]:
                at = dt.datetime.fromisoformat(step["at"])
                self.stdout.write(f"{at:%H:%M:%S}  {step['text']}")
            self.stdout.flush()
            shown = len(steps)

        bulk_jobs.run_until_ended(job=job, report=show)
        show()
        if job.state != job.State.DONE:
            raise CommandError(job.error or "The job was stopped.", returncode=1)
        self.stdout.write(f"The settings of {name} work.")

    def _show_domain(self, selectors: list[str]) -> None:
        self.stdout.write(f"{sender_domain()} (DEFAULT_FROM_EMAIL), {', '.join(settings.EMAIL_PROVIDERS)}")
        try:
            findings = read_domain(selectors=selectors)
        except Unreadable as error:
            raise CommandError(str(error), returncode=1) from error
        for one in findings:
            self.stdout.write(f"{one.topic:<10} {'ok    ' if one.is_good else 'change'} {one.text}")
        if not all(one.is_good for one in findings):
            raise CommandError("Change the DNS as above.", returncode=1)
