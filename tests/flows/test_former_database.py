"""A database of 0.4.0 is refused by every process and every command, and nothing in it changes."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from config import roles
from local.machine import HOST, free_port
from tests.kit import baseline, warm
from tests.kit.shop import Shop

pytestmark = pytest.mark.flow

#: pg_dump of a database that commit 256c3f0f migrated, without its partitions, comments and owners.
DUMP = Path(__file__).with_name("database_of_0_4_0.sql.gz")
REFUSAL = "belongs to an earlier orderpost: it names the migration "
PROCESSES = {
    **{role: command[1:] for role, command in roles.commands(host=HOST, port=free_port()).items()},
    "make_run": ["-m", "local.prepare", "--local-login"],
}
COMMANDS = (
    *("drain_outbox", "relay_outbox --once", "keep_partitions --once", "migrate --check"),
    *("tokens create till --scope all", "first_login", "pause --all", "status", "timeline 1"),
    *("resend_events --until 2026-01-01", "connections list"),
)
#: Run manage.py with the words of each argument, and say in JSON how each ended. Any exception ends the run.
RUN_ALL = """
import json, runpy, sys
ends = {}
for words in sys.argv[1:]:
    sys.argv = ["manage.py", *words.split()]
    try:
        runpy.run_path("manage.py", run_name="__main__")
        ends[words] = "it went through"
    except SystemExit as error:
        ends[words] = error.code
print("ENDS", json.dumps(ends))
"""
#: Each column.
COLUMNS = """
    SELECT attrelid::regclass::text, attname, atttypid, attnotnull FROM pg_attribute
    JOIN pg_class ON pg_class.oid = attrelid WHERE relnamespace = 'public'::regnamespace ORDER BY 1, 2
"""


def content(shop: Shop) -> list[object]:
    """Return all columns and all rows."""
    tables = shop.query(
        "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        " AND relkind IN ('r', 'p') ORDER BY 1"
    )
    rows = [shop.query(f"SELECT row::text FROM {table} AS row ORDER BY 1") for (table,) in tables]
    return [shop.query(COLUMNS), tables, rows]


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    with Shop() as shop:
        baseline.empty(shop)
        with psycopg.connect(shop.postgres.url) as connection:
            connection.execute(gzip.decompress(DUMP.read_bytes()))
        yield shop


@pytest.mark.parametrize("name", PROCESSES)
def test_a_process_refuses_a_database_of_0_4_0_and_changes_nothing(shop, name):
    before = content(shop)
    shop.spawn(name, [sys.executable, *PROCESSES[name]], KAFKA_BOOTSTRAP_SERVERS=f"{HOST}:1")
    code = shop.processes[name].wait(60)
    said = shop.log(name)
    assert code == 1 and REFUSAL in said, (code, said)
    assert "Traceback" not in said or name == "web", said  # as for a wrong setting
    assert content(shop) == before


def test_a_command_refuses_a_database_of_0_4_0_and_changes_nothing(shop):
    """In one process, because the start of each would cost a second of CPU."""
    before = content(shop)
    environment = shop.environment(KAFKA_BOOTSTRAP_SERVERS=f"{HOST}:1")
    done = warm.run([sys.executable, "-c", RUN_ALL, *COMMANDS], environment=environment)
    assert done.returncode == 0, done
    ends = json.loads(done.stdout.rpartition("ENDS ")[2])
    assert {words: end for words, end in ends.items() if REFUSAL not in str(end)} == {}
    assert list(ends) == list(COMMANDS) and "Traceback" not in done.stderr, done.stderr
    assert content(shop) == before
