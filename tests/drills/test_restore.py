"""PostgreSQL restored to a moment: nothing lost up to it, nothing doubled after it."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from local.machine import PROJECT, guarded
from local.servers import EmbeddedPostgres
from tests.kit.shop import Shop

pytestmark = [pytest.mark.flow, pytest.mark.drill]

ARCHIVING = """
archive_mode = on
archive_command = 'test ! -f "{archive}/%f" && cp "%p" "{archive}/.%f" && mv "{archive}/.%f" "{archive}/%f"'
"""


def run(postgres: EmbeddedPostgres, *arguments: str | Path) -> str:
    """Run a program as the account that runs PostgreSQL, and return what it prints."""
    environment = postgres.environment() | {"PATH": f"{postgres.bin}:{os.environ['PATH']}"}
    command = guarded([*map(str, arguments)], account=postgres.account)
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def buy(shop: Shop, count: int) -> set[str]:
    """Place and pay so many orders, four at a time; return their ids."""

    def buy_one(_: int) -> str:
        order = shop.place()
        shop.pay(order)
        return order

    with ThreadPoolExecutor(4) as pool:
        return set(pool.map(buy_one, range(count)))


def test_a_database_restored_to_a_moment_has_lost_nothing_up_to_it_and_doubles_nothing():
    with Shop(POLL_INTERVAL="1", EMAIL_RATE_LIMIT="20") as shop:
        work(shop)


def work(shop: Shop) -> None:
    folder = shop.postgres.data.parent
    archive, backup, restored = folder / "archive", folder / "backup", folder / "restored"
    run(shop.postgres, "mkdir", archive)
    for line in filter(None, ARCHIVING.format(archive=archive).splitlines()):
        name, value = line.split(" = ", 1)
        shop.query(f"ALTER SYSTEM SET {name} = {value}")
    shop.postgres.stop()
    shop.postgres.start(log=shop.folder / "postgres.log")
    shop.start("web", "worker", "beat", "relay")
    before_backup = buy(shop, 20)
    url = shop.postgres.url
    run(shop.postgres, "pg_basebackup", "-d", url, "-D", backup, "-c", "fast", "-X", "none", "--no-manifest")
    before = before_backup | buy(shop, 60)
    shop.sandbox.fail(kind="accept_then_hang", seconds=30, times=3)  # in flight at T and killed later
    before |= buy(shop, 10)
    ((moment,),) = shop.query("SELECT clock_timestamp()")
    time.sleep(0.01)
    after = buy(shop, 40)
    shop.until(lambda: sum(shop.accepted().values()) >= 110, "mails are sent after the moment, too")
    for name in ("worker", "relay", "web", "beat"):
        shop.kill(name)
    ((segment,),) = shop.query("SELECT pg_walfile_name(pg_switch_wal())")
    shop.until(lambda: (archive / segment).exists(), "the log is archived")
    shop.postgres.kill()

    began = time.monotonic()
    said = run(
        shop.postgres, PROJECT / "docker" / "restore.sh", backup, archive, restored, moment.isoformat()
    )
    assert "All is paused." in said
    shop.postgres.data = restored
    shop.postgres.start(log=shop.folder / "postgres.log")
    print(f"restored in {time.monotonic() - began:.1f} s: {said}")

    orders = {str(id) for (id,) in shop.query("SELECT id FROM orders")}
    assert before <= orders and not after & orders
    accepted = shop.accepted()
    shop.start("web", "worker", "beat", "relay")  # everything starts, and nothing goes out
    fresh = buy(shop, 5)
    shop.until(lambda: polls(shop) >= 3, "it is polled")
    assert shop.accepted() == accepted
    assert "paused" in shop.manage("status")

    logs = [str(shop.folder / f"{name}.log") for name in ("web", "worker", "beat", "relay")]
    lost = [json.loads(line) for line in shop.manage("after_restore", "--log", *logs).splitlines()]
    lost_orders = {change["order_id"] for change in lost if change.get("order_known") is False}
    assert lost_orders == after
    held = {str(id) for id, status in shop.rows("id, status") if status == "dead_lettered"}
    unsettled = {str(id) for id, status in shop.rows("id, status") if status != "sent"}
    # A person asks the provider about each that is held, and decides.
    shop.manage("shell", "-c", decide(accepted=[id for id in held if accepted.get(id)], held=sorted(held)))
    shop.manage("resume", "--all")
    wanted = before | fresh
    shop.until(lambda: finished(shop, len(wanted)), "all is sent")
    assert held <= unsettled
    mails = {str(id): str(order) for id, order in shop.rows("id, order_id")}
    assert set(mails.values()) == wanted
    final = shop.accepted()
    assert {id: final[id] for id in mails} == dict.fromkeys(mails, 1)
    print(f"{len(wanted)} e-mails, held {len(held)}, lost changes listed {len(lost)}")


def finished(shop: Shop, count: int) -> bool:
    return [status for (status,) in shop.rows()] == ["sent"] * count


def polls(shop: Shop) -> int:
    """Count the heartbeats of the poll that this test has seen."""
    # The restored database may be older than the first heartbeat.
    _seen.update(at for (at,) in shop.query("SELECT beat_at FROM heartbeats WHERE name = 'poll'"))
    return len(_seen)


_seen: set[dt.datetime] = set()


def decide(*, accepted: list[str], held: list[str]) -> str:
    """Return the code that marks as sent what the provider has, and resends the others."""
    others = sorted(set(held) - set(accepted))
    return (
        "from notifications import services; from notifications.changes import restored; "
        f"restored.mark_sent(ids=[__import__('uuid').UUID(id) for id in {accepted!r}]); "
        f"services.resend(ids=[__import__('uuid').UUID(id) for id in {others!r}])"
    )
