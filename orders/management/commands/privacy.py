"""`manage.py privacy export | erase --email ADDRESS`: export or erase a customer's data.

Exit codes:

0   done
1   an order or e-mail of the customer is not finished, or the database role is wrong
2   the address is wrong
75  the command has to be run again
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.serializers.json import DjangoJSONEncoder

from orders.privacy import erasure, person_export
from orders.privacy.persons import NoPerson, check_address
from outbox.database.postgres.connection import patient
from outbox.management.progress import Reporter
from outbox.retention.partitions.locks import AlreadyRunning
from outbox.retention.partitions.partitions import NotOwner


class Command(BaseCommand):
    help = "Export a person's data as JSON, or erase it, in live rows, detached tables and archives."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        export = verbs.add_parser("export", help="print one JSON document")
        erase = verbs.add_parser("erase", help="overwrite all personal data, and print what was changed")
        for verb in (export, erase):
            verb.add_argument("--email", required=True, help="the person's address, in upper or lower case")
        erase.add_argument(
            "--force", action="store_true", help="erase even if an order or e-mail is not finished"
        )
        erase.add_argument("--now", action="store_true", help="rewrite the archives at once")

    def handle(self, *args: Any, verb: str, email: str, **options: Any) -> None:
        if "@" not in email:
            raise CommandError("--email takes an e-mail address.", returncode=2)
        try:
            check_address(email)
        except NoPerson as error:
            raise CommandError(str(error), returncode=2) from error
        with patient(seconds=settings.DATABASE_MAINTENANCE_TIMEOUT):  # it reads whole tables
            self._answer(verb, email, options)

    def _answer(self, verb: str, email: str, options: Mapping[str, Any]) -> None:
        try:
            if verb == "export":
                with Reporter(self.stderr) as report:
                    document = person_export.export_person(email=email, report=report)
                self.stdout.write(json.dumps(document, cls=DjangoJSONEncoder, indent=2, ensure_ascii=False))
                return
            with Reporter(self.stderr) as report:
                done = erasure.erase_person(
                    email=email, report=report, force=options["force"], archives_now=options["now"]
                )
        except (erasure.InFlight, NotOwner) as error:
            raise CommandError(str(error), returncode=1) from error
        except (erasure.StillSending, AlreadyRunning) as error:
            raise CommandError(str(error), returncode=75) from error
        self.stdout.write(
            json.dumps({"changed": done.counts, "archives_to_rewrite": done.archives}, indent=2)
        )
        if done.archives:
            self.stderr.write(
                "The first rollover of next month rewrites these archives. --now rewrites them at once."
            )
