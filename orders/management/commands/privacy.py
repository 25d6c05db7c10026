"""`manage.py privacy export | erase --email ADDRESS`: export or erase a customer's data.

Exit codes:

0   done
1   the answer was not yes, the job was refused, stopped or failed, or the database role is wrong
2   the address is wrong
75  a rollover is running, so the cold files were not rewritten: run the command again
"""

from __future__ import annotations

import gzip
import json
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from orders.privacy import erasure, jobs
from orders.privacy.persons import NoPerson, check_address
from retention.models import Erasure
from retention.partitions.locks import AlreadyRunning
from retention.partitions.partitions import NotOwner, require_owner
from retention.rows_of_person import describe_rest
from runtime.audit import command_actor
from runtime.database.postgres.connection import patient
from runtime.jobs.run import run_until_ended
from runtime.models import BulkJob
from runtime.progress import Reporter, words_on_a_terminal

#: `erase` asks this on a terminal.
QUESTION = "This overwrites the personal data of {}, and cannot be undone. Type yes to erase: "


class Command(BaseCommand):
    help = "Export a person's data as JSON, or erase it, in live rows, detached tables and cold files."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        export = verbs.add_parser("export", help="print one JSON document")
        erase = verbs.add_parser("erase", help="overwrite all personal data, and print what was changed")
        for verb in (export, erase):
            verb.add_argument("--email", required=True, help="the person's address, in upper or lower case")
        erase.add_argument(
            "--force", action="store_true", help="erase even if an order or e-mail is not finished"
        )
        erase.add_argument("--now", action="store_true", help="rewrite the cold files at once")

    @words_on_a_terminal()
    def handle(self, *args: Any, verb: str, email: str, **options: Any) -> None:
        if "@" not in email:
            raise CommandError("--email takes an e-mail address.", returncode=2)
        with patient(seconds=settings.DATABASE_MAINTENANCE_TIMEOUT):  # it reads whole tables
            try:
                if verb == "export":
                    self._export(email)
                else:
                    self._erase(email, force=options["force"], now=options["now"])
            except erasure.NotFinished as error:
                raise CommandError(str(error), returncode=1) from error
            except NoPerson as error:
                raise CommandError(str(error), returncode=2) from error
            except NotOwner as error:
                raise CommandError(str(error), returncode=1) from error
            except AlreadyRunning as error:
                raise CommandError(str(error), returncode=75) from error

    def _export(self, email: str) -> None:
        job = self._run(jobs.start_export(email=email, by=command_actor()))
        document = gzip.decompress(BulkJob.objects.values_list("result", flat=True).get(id=job.id) or b"")
        BulkJob.objects.filter(id=job.id).update(result=None)  # nobody else may download it
        self.stdout.write(document.decode())

    def _erase(self, email: str, *, force: bool, now: bool) -> None:
        if now:
            require_owner(using=erasure.OWNER)
        if not force:
            erasure.check_not_in_flight(check_address(email))
        if sys.stdin.isatty() and input(QUESTION.format(email)).strip().lower() != "yes":
            raise CommandError("Nothing was erased.", returncode=1)
        job = self._run(jobs.start_erasure(email=email, force=force, by=command_actor()))
        if now:
            with Reporter(self.stderr) as report:
                erasure.rewrite_cold_files(report=report)
        recorded = Erasure.objects.filter(address_hash=job.filter["person"]).first()
        cold_files = recorded.cold_files if recorded else []
        if self.stdout.isatty():
            self.stdout.write(f"Erased. Rows changed: {job.done_count:,}.")
        else:
            result = {"changed": job.done_count, "cold_files_to_rewrite": cold_files}
            self.stdout.write(json.dumps(result, indent=2))
        if cold_files:
            self.stderr.write(describe_rest(person=job.filter["person"]))

    def _run(self, job: BulkJob) -> BulkJob:
        """Do the job and print its progress. If this process dies, a worker continues the job."""
        with Reporter(self.stderr) as report:
            run_until_ended(job=job, report=report)
        if job.state != job.State.DONE:
            raise CommandError(job.error or "The job was stopped.", returncode=1)
        return job
