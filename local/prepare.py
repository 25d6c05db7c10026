"""`python -m local.prepare [--local-login] [--topics]`: migrate, and create the local login and the topics.

`local` runs it in a process of its own, whose memory for Django is freed afterwards. It imports Django while
`local` starts the servers, and continues when `local` closes its stdin.
"""

from __future__ import annotations

import os
import sys

import django
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import OperationalError

from runtime.apps import refuse_pooler


def make_local_login() -> None:
    """Create the login admin/admin, with an address for test e-mails, unless there is a superuser."""
    from django.contrib.auth.models import User

    from runtime.audit import command_actor
    from web.login.own_address import confirm

    if not User.objects.filter(is_superuser=True).exists():
        user = User.objects.create_superuser("admin", "", "admin")
        confirm(user, "admin@example.com", act="Confirmed for `make run`.", by=command_actor())


def main() -> int:
    """Prepare the database. If a setting is bad or the database fails, print the reason and return 1."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    try:
        django.setup()
        sys.stdin.read()
        refuse_pooler(using="default")
    except (ImproperlyConfigured, OperationalError) as error:
        print(error, file=sys.stderr)
        return 1
    # Even without new migrations: the apps' post_migrate handlers must run.
    call_command("migrate", interactive=False, verbosity=0)
    if "--local-login" in sys.argv[1:]:
        make_local_login()
    if "--topics" in sys.argv[1:]:
        one_broker = {"partitions": 3, "replication_factor": 1, "min_insync_replicas": 1}
        call_command("make_topics", verbosity=0, **one_broker)
    return 0


if __name__ == "__main__":
    sys.exit(main())
