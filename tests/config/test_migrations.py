"""No migration after an app's first holds a long lock on a table with rows, or removes what is still read.

Two releases run side by side in a deploy. squawk knows PostgreSQL's rules for that.
"""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader

APPS = ("orders", "notifications", "outbox")
SQUAWK = Path(sys.executable).with_name("squawk")
#: Matters of taste; what is left is about locks and about readers.
TASTE = (
    "transaction-nesting",  # sqlmigrate writes the BEGIN
    "prefer-text-field",
    "prefer-bigint-over-int",
    "prefer-bigint-over-smallint",
    "prefer-identity",
    "prefer-robust-stmts",
    "require-timeout-settings",
    "prefer-timestamp-tz",
    "ban-char-field",
)
#: What a migration does all the same, and why it may.
KNOWN = {
    "0003_heartbeats_without_a_gap": "adding-field-with-default",  # a table of a dozen rows
    "0005_indexes_of_the_relay": "require-concurrent-index-deletion",  # of a partitioned table: there is none
}


def later() -> list[tuple[str, str]]:
    loader = MigrationLoader(None)
    return sorted(
        (app, name) for app, name in loader.disk_migrations if app in APPS and not name.startswith("0001")
    )


def squawk(folder: Path, sql: str, *excluded: str) -> subprocess.CompletedProcess[str]:
    # An index of the parent ONLY touches no row; its partitions' own are built CONCURRENTLY after it.
    lines = [line for line in sql.splitlines() if " ON ONLY " not in line]
    (folder / "migration.sql").write_text("\n".join(lines))
    options = [f"--exclude={rule}" for rule in (*TASTE, *excluded)]
    command = [str(SQUAWK), "--pg-version=15.0", *options, str(folder / "migration.sql")]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.django_db(transaction=True)  # some build indexes beside their writers
@pytest.mark.parametrize(("app", "name"), later())
def test_a_migration_takes_no_long_lock_and_takes_nothing_away(app, name, tmp_path):
    out = io.StringIO()
    call_command("sqlmigrate", app, name, stdout=out)
    found = squawk(tmp_path, out.getvalue(), *([KNOWN[name]] if name in KNOWN else []))
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE INDEX i ON orders (email);",
        "ALTER TABLE orders ADD COLUMN x int NOT NULL;",
        "ALTER TABLE orders RENAME COLUMN email TO mail;",
        "ALTER TABLE orders DROP COLUMN email;",
        "ALTER TABLE orders ALTER COLUMN total_amount TYPE numeric;",
        "ALTER TABLE orders ADD CONSTRAINT c CHECK (total_amount > 0);",
    ],
)
def test_the_check_sees_what_it_is_for(sql, tmp_path):
    found = squawk(tmp_path, sql)
    assert found.returncode != 0 and "migration.sql" in found.stdout


@pytest.mark.django_db
def test_no_index_of_a_large_table_is_left_invalid():
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid")
        assert cursor.fetchall() == []
