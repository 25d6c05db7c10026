"""Everything through pgbouncer with `pool_mode = transaction`: docker/pgbouncer/pgbouncer.ini as it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from local.machine import PROJECT
from tests.kit import prepared
from tests.kit.pgbouncer import Pooler, needs_pgbouncer
from tests.kit.shop import Shop
from tests.kit.waiting import PATIENCE

pytestmark = [pytest.mark.flow, needs_pgbouncer]

#: What runs through it in `make drills`, without the drills among them; how many tests are left at least.
FLOWS = (
    "tests/flows/test_crashes.py",
    "tests/flows/test_events.py",
    "tests/flows/test_events_over_http.py",
    "tests/flows/test_frozen_database.py",
    "tests/flows/test_outages.py",
    "tests/flows/test_whose_failure.py",
    "tests/chaos/test_slice.py",
)
AT_LEAST = 18


@contextmanager
def app_role_pooled(shop: Shop) -> Iterator[str]:
    """Have the processes log in by pgbouncer as the app's role, with a password; yield its URL without it."""
    with psycopg.connect(shop.postgres.url, autocommit=True) as owner:
        owner.execute((PROJECT / "docker" / "app_role.sql").read_bytes())
        owner.execute("ALTER ROLE orderpost_app PASSWORD 'secret'")
        stored = "SELECT rolpassword FROM pg_authid WHERE rolname = 'orderpost_app'"
        (secret,) = owner.execute(stored).fetchall()[0]
    with Pooler(server=shop.postgres.port, users={"orderpost_app": secret}) as pooler:
        shop.settings |= {"DATABASE_URL": pooler.url("orderpost_app", "secret")}
        yield shop.postgres.url.replace("orderpost@", "orderpost_app@")


@pytest.mark.drill
def test_an_order_goes_its_way_and_what_needs_a_session_says_so_at_its_start():
    with Shop() as shop, app_role_pooled(shop) as direct:
        shop.start("relay:2")  # it exits, and the rest of the shop goes on next to it
        shop.settings |= {"DIRECT_DATABASE_URL": direct}
        shop.start("web", "worker", "beat", "relay")
        for number in range(4):
            shop.pay(shop.place(f"customer{number}@example.com"))
        shop.until(lambda: shop.all_sent(4), "they are sent")
        shop.until(shop.all_published, "all is published")
        shop.until(lambda: shop.query("SELECT 1 FROM heartbeats WHERE name = 'poll'"), "beat's poll came")
        assert shop.processes["relay:2"].wait(PATIENCE) == 1, shop.log("relay:2")
        last = shop.log("relay:2").strip().splitlines()[-1]
        assert last.startswith("DIRECT_DATABASE_URL leads to a pooler"), last
        for name in ("web", "worker", "beat", "relay"):
            assert "prepared statement" not in shop.log(name)
            assert "Traceback" not in shop.log(name), shop.log(name)


@pytest.mark.drill
def test_each_command_that_needs_a_session_says_so():
    with Shop() as shop, app_role_pooled(shop):
        for setting, *command in (
            ("DATABASE_URL", "migrate"),
            ("PARTITION_DATABASE_URL", "keep_partitions"),
            ("PARTITION_DATABASE_URL", "partitions", "rollover"),
            ("DIRECT_DATABASE_URL", "privacy", "erase", "--email", "ann@example.com"),
            ("PARTITION_DATABASE_URL", "privacy", "erase", "--email", "ann@example.com", "--now"),
        ):
            with pytest.raises(subprocess.CalledProcessError) as caught:
                shop.manage(*command)
            assert f"{setting} leads to a pooler" in caught.value.stderr, caught.value.stderr


@pytest.mark.drill
def test_the_flows_and_the_chaos_slice_hold_through_it():
    ours = ("DATABASE_URL", "REDIS_URL", prepared.FOLDER, "PYTEST_XDIST_WORKER", "PYTEST_XDIST_TESTRUNUID")
    environment = {name: value for name, value in os.environ.items() if name not in (*ours, "PYTEST_ADDOPTS")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--no-header", *FLOWS],
        cwd=PROJECT,
        env=environment | {"PGBOUNCER": "1"},
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) >= AT_LEAST, done.stdout[-2_000:]
