"""`python -m config.local.prepare [--local-login]`: migrates, and makes the local login of a new database.

Run by `config.local` once its servers answer, as a process of its own: what Django holds is gone after it.
"""

from __future__ import annotations

import os
import sys
import time
from io import StringIO

import django
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import OperationalError, connection
from django.db.migrations.executor import MigrationExecutor

ATTEMPTS = 10  # for a database that a person named, which may be starting too


class Progress(StringIO):
    """Stands in for migrate's output: one line that counts on a terminal, a few lines elsewhere."""

    def __init__(self, *, total: int) -> None:
        super().__init__()
        self._total = total
        self._done = 0

    def write(self, text: str) -> int:
        """This function will count the migrations as they are applied and forget the rest."""
        if text.strip().startswith("Applying "):
            self._done += 1
            line = f"  database: migration {self._done} of {self._total}"
            if sys.stdout.isatty():
                print(f"\r\033[K{line}", end="" if self._done < self._total else "\n", flush=True)
            elif self._done % 10 == 0 or self._done == self._total:
                print(line, flush=True)
        return len(text)


def wait_for_database() -> None:
    """This function will return when the database takes a connection, or raise its OperationalError."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            connection.ensure_connection()
        except OperationalError:
            if attempt == ATTEMPTS:
                raise
            time.sleep(1)
        else:
            return


def migrate() -> None:
    """This function will apply what is missing; migrate runs in any case, for what the apps do after it."""
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    call_command("migrate", interactive=False, stdout=Progress(total=len(plan)))


def make_local_login() -> None:
    """This function will make admin/admin unless the database has a superuser already."""
    from django.contrib.auth.models import User

    if not User.objects.filter(is_superuser=True).exists():
        User.objects.create_superuser("admin", "admin@localhost", "admin")


def main() -> int:
    """This function will do both and return 1 with a sentence if the database or a setting forbids it."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    try:
        django.setup()
        wait_for_database()
    except (ImproperlyConfigured, OperationalError) as error:
        print(error, file=sys.stderr)
        return 1
    migrate()
    if "--local-login" in sys.argv[1:]:
        make_local_login()
    return 0


if __name__ == "__main__":
    sys.exit(main())
