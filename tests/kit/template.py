"""Migrate one database for all processes of a parallel run. Each test database is a copy of it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
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

    def make() -> None:
        with blocker.unblock():
            migrate(name)

    with shared_database(name, make):
        connection.settings_dict["TEST"] |= {"TEMPLATE": name, "MIGRATE": False}
        yield


@contextmanager
def shared_database(name: str, make: Callable[[], None]) -> Iterator[None]:
    """Have a database that the first process of a run makes, and the last one drops."""
    made = Path(os.environ[prepared.FOLDER]) / name
    with made.with_suffix(".lock").open("w") as lock:
        while True:
            fcntl.flock(lock, fcntl.LOCK_SH)
            if made.exists():
                break
            fcntl.flock(lock, fcntl.LOCK_UN)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                make()
                made.touch()
            fcntl.flock(lock, fcntl.LOCK_UN)  # in between another process may drop it
        yield
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # another process uses it
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
