"""`manage.py providers try NAME --to ADDRESS`: test a provider.

Exit codes: 0 if all is right, 1 if something must be changed, 2 for a wrong argument.
"""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from notifications.provider_tests import act_on_test, default_event, find_result, send_test
from runtime.audit import command_actor, record
from runtime.progress import words_on_a_terminal

POLL_SECONDS = 1.0


class Command(BaseCommand):
    help = "Test a provider by one real e-mail and its webhook."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        test = verbs.add_parser("try", help="send one real e-mail, and name the setting that is wrong")
        test.add_argument("name", metavar="NAME", help="one of EMAIL_PROVIDERS")
        test.add_argument("--to", required=True, metavar="ADDRESS", help="your own address")
        test.add_argument(
            "--event",
            default=default_event(),
            help="send its e-mail, with a sample order (default: %(default)s)",
        )

    @words_on_a_terminal()
    def handle(self, *args: Any, name: str, to: str, event: str, **_: Any) -> None:
        try:
            test = send_test(provider=name, to=to, event=event)
        except ValueError as error:
            raise CommandError(str(error), returncode=2) from error
        with transaction.atomic():
            record(act_on_test(test, event=event), by=command_actor())
        result, shown = find_result(test), ""
        if test.answer != result.text:
            self.stdout.write(test.answer)
        while not result.is_final:
            if result.text != shown:
                self.stdout.write(result.text)
                self.stdout.flush()
            shown = result.text
            time.sleep(POLL_SECONDS)
            test.refresh_from_db(fields=["reported"])
            result = find_result(test)
        if not result.works:
            raise CommandError(result.text, returncode=1)
        self.stdout.write(result.text)
