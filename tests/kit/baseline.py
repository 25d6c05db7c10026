"""The commit that runs next to this checkout: since then, stored and public names keep their meaning."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from events.publishing.shards import LOCK as RELAY_LOCK
from local.machine import PROJECT
from tests.kit.customers import Customers
from tests.kit.shop import Shop
from tests.kit.waiting import PATIENCE
from tests.kit.words import SHARDS

#: The full hash of the commit after which no migration changes in place. Later, of the last release's.
BASELINE = "14dbcf35317150c6a418b12f8e8661abfaf9f74d"
#: Rows that each kind of process writes, after a moment.
WORKED = """
    SELECT EXISTS (SELECT FROM email_notifications WHERE created_at > {0} AND delivered_at IS NOT NULL)
        AND EXISTS (SELECT FROM outbox_events WHERE created_at > {0} AND published_at IS NOT NULL)
        AND EXISTS (SELECT FROM processed_events WHERE processed_at > {0})
        AND 3 = (SELECT count(*) FROM heartbeats
            WHERE name IN ('poll', 'web', 'webhook:sendgrid') AND beat_at > {0})
"""
#: Whether the locks of every shard, by the number of this checkout, have owners.
OWNED = f"""
    SELECT count(*) = {SHARDS} FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND classid = {RELAY_LOCK} AND objsubid = 2
"""


def commit() -> str:
    """Return the baseline's hash, or an empty text without its history."""
    done = subprocess.run(
        ["git", "rev-parse", BASELINE], cwd=PROJECT, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def unpack(folder: Path) -> Path:
    """Write the baseline's files into a new folder. Skip the test if this checkout's history lacks it."""
    archive = folder.with_suffix(".tar")
    command = ["git", "archive", "--format", "tar", "--output", str(archive), BASELINE]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode != 0:
        pytest.skip(f"NOT TESTED: the history here lacks the baseline {BASELINE}: {done.stderr.strip()}")
    folder.mkdir()
    subprocess.run(["tar", "-xf", str(archive), "-C", str(folder)], check=True, timeout=PATIENCE)
    return folder


def empty(shop: Shop) -> None:
    """Give the shop a database without tables, for the baseline to migrate."""
    parts = conninfo_to_dict(shop.postgres.url)
    name = parts.pop("dbname")
    with psycopg.connect(make_conninfo("", **parts, dbname="template1"), autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())
        connection.execute(f'CREATE DATABASE "{name}"'.encode())


def until_all_work(shop: Shop, customers: Customers, stage: str) -> None:
    """Wait until requests, e-mails, webhooks, events in and out, and polls that begin now have an effect.

    Relays own their locks.
    """
    ((now,),) = shop.query("SELECT quote_literal(clock_timestamp())")
    before = len(customers.acknowledged)
    worked = WORKED.format(now)

    def all_work() -> bool:
        if len(customers.acknowledged) < before + 20:
            return False
        return shop.query(worked) == shop.query(OWNED) == [(True,)]

    shop.until(all_work, f"all processes work: {stage}")


def complaints(shop: Shop) -> list[str]:
    """Return the tracebacks in logs, and the lines of a task that the receiver does not know.

    Each one comes with the 60 lines after it, because a traceback may be written line by line.
    """
    tracebacks = []
    for log in sorted(shop.folder.glob("*.log")):
        lines = log.read_text(errors="replace").splitlines()
        for number, line in enumerate(lines):
            if "Traceback" in line or "unregistered task" in line:
                whole = "\n".join(part[:2000] for part in lines[number : number + 60])
                tracebacks.append(f"{log.name}: {whole}")
    return tracebacks
