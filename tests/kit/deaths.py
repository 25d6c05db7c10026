"""Run code that kills its own process in the test's database, as `kill -9` at one exact step."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from django.db import connection

from tests.kit import warm
from tests.kit.waiting import PATIENCE, until


def run_until_killed(code: str, *arguments: str, tmp_path: Path) -> None:
    """Run Python code that kills its process, and return when its sessions have ended, too.

    PostgreSQL hears of a client's death a moment later. Until then its locks are held, and a commit that it
    sent may still come.
    """
    others = sessions()
    command = [sys.executable, "-c", code, *arguments]
    died = warm.run(command, environment=dying_environment(tmp_path), timeout=PATIENCE)
    assert died.returncode == -signal.SIGKILL, (died.stdout, died.stderr)
    until(lambda: sessions() <= others, "PostgreSQL has noticed the death")


def sessions() -> set[int]:
    """Return the processes of the other sessions of this database."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        return {pid for (pid,) in cursor.fetchall()}


def dying_environment(tmp_path: Path) -> dict[str, str]:
    wanted = connection.settings_dict
    url = f"postgresql://{wanted['USER']}@{wanted['HOST']}:{wanted['PORT']}/{wanted['NAME']}"
    return {
        **os.environ,
        "DATABASE_URL": url,
        "PARTITION_DATABASE_URL": url,
        "ARCHIVE_URL": (tmp_path / "archive").as_uri(),
        "EMAIL_WARM_DAYS": "1",
        "DJANGO_SETTINGS_MODULE": "config.settings",
    }
