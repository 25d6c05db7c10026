"""Migrate one database for all processes of a parallel run. Each test database is a copy of it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from django.db import connection
from pytest_django import DjangoDbBlocker

from tests.kit import prepared


@contextmanager
def shared(blocker: DjangoDbBlocker) -> Iterator[None]:
    """Make Django copy this process's test database. The first process that needs it migrates."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:  # a single process migrates its own
        yield
        return
    name = f"template_{run}"
    test, made = connection.settings_dict["TEST"], Path(os.environ[prepared.FOLDER]) / name
    with made.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            with blocker.unblock():
                migrate(name)
            made.touch()
        test |= {"TEMPLATE": name, "MIGRATE": False}
        fcntl.flock(lock, fcntl.LOCK_UN)
        yield
        fcntl.flock(lock, fcntl.LOCK_EX)
        if made.exists():  # a process that starts later makes it again
            from tests.kit.months import dsn  # needs Django's apps

            with psycopg.connect(dsn("postgres"), autocommit=True) as other:
                other.execute(f"DROP DATABASE {name}")
            made.unlink()


def migrate(name: str) -> None:
    """Create a database with the tables of all migrations."""
    settings = connection.settings_dict
    before, test = settings["NAME"], settings["TEST"]["NAME"]
    settings["TEST"]["NAME"] = name
    try:
        connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
    finally:
        connection.close()
        settings["NAME"], settings["TEST"]["NAME"] = before, test
