"""`python -m local.prepare [--local-login] [--topics]`: migrate, and create the local login and the topics.

`local` runs it when its servers answer, in a separate process, so that Django's memory is freed afterwards.
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

from config.roles import switch_from
from outbox.apps import need_own_session

ATTEMPTS = 10  # a server that DATABASE_URL names may still be starting


def wait_for_database() -> None:
    """Wait until the database accepts a connection. Raise OperationalError after ten attempts."""
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
    """Run `migrate`, even without new migrations, because the apps' post_migrate handlers must run."""
    executor = MigrationExecutor(connection)
    if plan := executor.migration_plan(executor.loader.graph.leaf_nodes()):
        print(f"  database: {len(plan)} migrations", flush=True)
    call_command("migrate", interactive=False, verbosity=0)


def make_local_login() -> None:
    """Create the login admin/admin unless the database has a superuser."""
    from django.contrib.auth.models import User

    if not User.objects.filter(is_superuser=True).exists():
        User.objects.create_superuser("admin", "admin@localhost", "admin")


def main() -> int:
    """Prepare the database. If a setting is bad or the database fails, print the reason and return 1."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    try:
        django.setup()
        wait_for_database()
        need_own_session(using="default")
    except (ImproperlyConfigured, OperationalError) as error:
        print(error, file=sys.stderr)
        return 1
    migrate()
    if switch_from("FOLLOW_WAL", environ=os.environ):
        call_command("follow_wal", make_publications=True, stdout=StringIO())
    if "--local-login" in sys.argv[1:]:
        make_local_login()
    if "--topics" in sys.argv[1:]:
        one_broker = {"partitions": 3, "replication_factor": 1, "min_insync_replicas": 1}
        call_command("make_topics", verbosity=0, **one_broker)
    return 0


if __name__ == "__main__":
    sys.exit(main())
