"""`manage.py providers try NAME --to ADDRESS`: prove a provider's settings.

Exit codes: 0 if all is right, 1 if something must be changed, 2 for a wrong argument.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from notifications.trials import default_event, start_trial
from runtime.jobs.run import run_until_ended
from runtime.models import BulkJob
from runtime.progress import words_on_a_terminal


class Command(BaseCommand):
    help = "Prove a provider by one real e-mail and its webhook."

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

    @words_on_a_terminal()
    def handle(self, *args: Any, name: str, to: str, event: str, **_: Any) -> None:
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

        run_until_ended(job=job, report=show)
        show()
        if job.state != job.State.DONE:
            raise CommandError(job.error or "The job was stopped.", returncode=1)
        self.stdout.write(f"The settings of {name} work.")
