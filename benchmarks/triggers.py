"""From an order's commit to the provider's yes, by the trigger that says that its mail is due.

Each trigger runs alone, with what it needs and nothing else. One process pays orders through the services,
`rate` a second, and notes when each call returned; the provider answers at once and notes when each mail
came. All clocks are this machine's. To measure another trigger, add it to `TRIGGERS`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from benchmarks.figures import percentile, table
from benchmarks.rig import Rig
from config.roles import commands
from local.kafka.broker import EmbeddedKafka
from local.kafka.connect import EmbeddedConnect
from local.kafka.jars import Unavailable
from local.machine import HOST, PROJECT, free_port

WARM_UP, WARM_UP_SECONDS = 3, 10.0  # orders at a time, and how long to wait for their mails
PATIENCE = 150.0  # seconds until the last mail must have arrived
SETTINGS = {"EMAIL_RATE_LIMIT": "1000", "LOG_LEVEL": "WARNING"}

_LOAD = """
    SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8, xact_commit::float8
    FROM pg_stat_database WHERE datname = current_database()
"""


@dataclasses.dataclass(frozen=True)
class Trigger:
    """A trigger. `running(rig)` runs its processes; `settings` are the variables of writers and senders."""

    running: Callable[[Rig], AbstractContextManager[None]]
    settings: dict[str, str]
    least_seconds: float = 0.0


def processes(*kinds: str) -> Callable[[Rig], AbstractContextManager[None]]:
    """Run processes of orderpost."""

    @contextlib.contextmanager
    def running(rig: Rig) -> Iterator[None]:
        for kind in kinds:
            rig.run(kind, commands()[kind])
        try:
            yield
        finally:
            for kind in kinds:
                rig.stop(kind)

    return running


@contextlib.contextmanager
def debezium(rig: Rig) -> Iterator[None]:
    """Run Kafka, Kafka Connect with Debezium, a consumer of its messages, and the worker that it wakes."""
    setup = PROJECT / "docker" / "debezium" / "setup.sql"
    rig.query(setup.read_text())
    kafka = EmbeddedKafka(data=rig.folder / "kafka", port=free_port())
    database = {"HOST": HOST, "PORT": str(rig.postgres.port), "NAME": "orderpost", "USER": "orderpost_cdc"}
    connect = EmbeddedConnect(
        bootstrap=kafka.url,
        folder=rig.folder / "connect",
        port=free_port(),
        database=database | {"PASSWORD": "unused"},
    )
    try:
        kafka.start(log=rig.folder / "kafka.log", timeout_seconds=120)
        connect.run()
        connect.put()
        rig.servers |= {"kafka": kafka, "connect": connect}
        rig.run("cdc", commands()["cdc"], KAFKA_BOOTSTRAP_SERVERS=kafka.url)
        try:
            with processes("worker")(rig):
                yield
        finally:
            rig.stop("cdc")
    finally:
        connect.kill()
        kafka.stop()


TRIGGERS = {
    "fast path": Trigger(processes("worker"), {"FAST_PATH": "on"}),
    "poll": Trigger(processes("worker", "beat"), {"FAST_PATH": "off"}, least_seconds=120),
    "Debezium": Trigger(debezium, {"FAST_PATH": "off"}),
}


def compare(*, rates: Sequence[float], seconds: float, names: Sequence[str] = ()) -> str:
    """Measure triggers (default: all) at each rate. Return Markdown."""
    rows = [["trigger", "changes/s", *(f"{wait} ms" for wait in WAITS), *COSTS]]
    for name in names or TRIGGERS:
        trigger = TRIGGERS[name]
        for rate in rates:
            try:
                found = measure(trigger, rate=rate, seconds=max(seconds, trigger.least_seconds))
            except Unavailable as reason:
                print(f"  {name} is left out: {reason}", file=sys.stderr)
                break
            figures = [f"{found[one]:,.1f}" for one in (*WAITS, *COSTS)]
            rows.append([name, f"{rate:g}", *figures])
            print(f"  {name} at {rate:g}/s: {found}", file=sys.stderr)
    note = (
        "Costs are for one change, without the process that writes it; PostgreSQL's are those of the order,"
        " its change and its mail together. Senders are all processes but PostgreSQL and the provider."
    )
    return f"{table(rows)}\n\n{note}"


WAITS = ("p50", "p99", "max")
COSTS = ("senders CPU ms", "PostgreSQL CPU ms", "transactions", "WAL kB")


def measure(trigger: Trigger, *, rate: float, seconds: float) -> dict[str, float]:
    """Pay orders at a rate on separate servers. Return latencies and costs in ms."""
    count = max(1, int(rate * seconds))
    with Rig(**SETTINGS, **trigger.settings) as rig:
        rig.start_provider(delay=0)
        with trigger.running(rig):
            warm = _warm_up(rig)
            before, (load,) = rig.cpu(), rig.query(_LOAD)
            committed = json.loads(rig.python("-m", "benchmarks.triggers", str(rate), str(count)))
            accepted = _arrived(rig, warm + count)
            time.sleep(1)  # outcomes are written up to 0.1 s later
            after, (loaded,) = rig.cpu(), rig.query(_LOAD)
    waits = [(accepted[address] - at) * 1000 for address, at in committed]
    spent = {name: (after[name] - before.get(name, 0.0)) * 1000 / count for name in after}
    return {
        "p50": percentile(waits, 0.5),
        "p99": percentile(waits, 0.99),
        "max": max(waits),
        "senders CPU ms": sum(used for name, used in spent.items() if name not in ("postgres", "provider")),
        "PostgreSQL CPU ms": spent["postgres"],
        "transactions": (loaded[1] - load[1]) / count,
        "WAL kB": (loaded[0] - load[0]) / count / 1000,
    }


def _warm_up(rig: Rig) -> int:
    """Pay some orders at a time until all their mails came; return how many.

    What the trigger tells before its process listens is lost, and here nothing polls.
    """
    paid, deadline = 0, time.monotonic() + PATIENCE
    while True:
        rig.python("-m", "benchmarks.triggers", "100", str(WARM_UP))
        paid += WARM_UP
        again = time.monotonic() + WARM_UP_SECONDS
        while time.monotonic() < again:
            if rig.provided() == paid:
                return paid
            time.sleep(0.5)
        if again > deadline:
            raise RuntimeError(f"{rig.provided()} of {paid} mails came")


def _arrived(rig: Rig, count: int) -> dict[str, float]:
    """Wait until the provider has accepted `count` mails. Return the time of each recipient's mail."""
    deadline = time.monotonic() + PATIENCE
    while rig.provided() < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{rig.provided()} of {count} mails came")
        time.sleep(0.5)
    with urllib.request.urlopen(f"http://{HOST}:{rig.provider_port}/times", timeout=30) as answer:
        return dict(json.loads(answer.read()))


def pay(rate: float, count: int) -> None:
    """Place orders, pay `rate` of them a second, and print the address and the commit's time of each."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    import django

    django.setup()
    from django.db import connection

    from benchmarks.rows import place
    from orders.models import Order
    from orders.services import pay_order

    with connection.cursor() as cursor:
        ids = place(cursor, count)
    for id in ids:  # each has an address that no other run has
        Order.objects.filter(id=id).update(email=f"bench-{id}@example.com")
    found = []
    begin = time.monotonic()
    for number, id in enumerate(ids):
        time.sleep(max(0.0, begin + number / rate - time.monotonic()))
        pay_order(order_id=id)
        found.append((f"bench-{id}@example.com", time.time()))
    time.sleep(1)  # a thread sends the wake-ups
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    pay(float(sys.argv[1]), int(sys.argv[2]))
