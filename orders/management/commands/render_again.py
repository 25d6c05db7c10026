"""`manage.py render_again`: send e-mails with a new text, after a mistake in a template was corrected."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from orders.bulk_actions import RENDER_AGAIN
from orders.render_again import render_again
from outbox.bulk import start_job
from outbox.privacy import AddressGiven
from outbox.telemetry.context import Context, new_correlation_id, working_for

#: Options that filter e-mails, with their choices.
FILTERS = {"status": ("dead_lettered", "failed"), "event_type": None, "provider": None, "cause": None}


class Command(BaseCommand):
    help = (
        "Give up dead letters and failed e-mails, and send each again, rendered from its order. Name e-mails "
        "by their ids, or by a filter for a background job."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("ids", nargs="*", type=uuid.UUID, metavar="ID", help="an e-mail's id")
        for name, choices in FILTERS.items():
            parser.add_argument(f"--{name.replace('_', '-')}", choices=choices, default="", help="filter")
        parser.add_argument("--user", default="", help="the login of the job's user, for the audit log")
        parser.add_argument("--reason", default="", help="a reason for the audit log")

    def handle(self, *args: Any, **options: Any) -> None:
        filter = {name: str(options[name]) for name in FILTERS if options[name]}
        if bool(options["ids"]) == bool(filter):
            raise CommandError("Give either ids or a filter: --status, --event-type, --provider or --cause.")
        if filter:
            self._start(filter, options["user"], options["reason"])
            return
        with working_for(Context(new_correlation_id())), transaction.atomic():
            done, refusals = render_again(ids=options["ids"])
        for one in done:
            self.stdout.write(f"{one.id}: rendered again as {one.copy_id}")
        for refusal in refusals:
            self.stderr.write(f"{refusal.id}: {refusal.text}")
        if refusals:
            raise CommandError(f"Rendered again: {len(done)}. Left alone: {len(refusals)}.")

    def _start(self, filter: dict[str, str], login: str, reason: str) -> None:
        users = get_user_model()
        user = users._default_manager.filter(**{users.USERNAME_FIELD: login}).first()
        if user is None or not user.has_perm(RENDER_AGAIN.permission):
            raise CommandError(f"--user: a login with the permission {RENDER_AGAIN.permission} is needed.")
        try:
            job = start_job(
                action=RENDER_AGAIN.name,
                filter={"status": "dead_lettered", **filter},
                user=user,
                reason=reason,
            )
        except AddressGiven as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"Job {job.id} for {job.total} e-mails. The admin shows it under Jobs.")
