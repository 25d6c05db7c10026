"""What can go wrong, each as a function that does it, waits, and undoes it. Called by tests.chaos.run alone.

All from the main thread: Linux kills a guarded process when the thread that started it ends.
"""

from __future__ import annotations

import dataclasses
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import redis

from tests.chaos.customers import POISON
from tests.chaos.listener import TOPICS
from tests.flows.shop import PAYMENT, Shop
from tests.smtp import SmtpServer

#: A second relay and a second consumer are in `background`.
PROCESSES = ("web", "worker", "worker:2", "beat", "standby", "relay", "consumer", "partitions", "background")
CLOCK = Path(__file__).parent / "clock"

#: Every write is refused as a full disk refuses it while a row is in chaos_full.
FULL_DISK = """
    CREATE TABLE chaos_full (since timestamptz DEFAULT now());
    CREATE FUNCTION chaos_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF EXISTS (SELECT FROM chaos_full) THEN
            RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100';
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER chaos BEFORE INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION chaos_disk();
    CREATE TRIGGER chaos BEFORE INSERT OR UPDATE ON email_notifications
        FOR EACH ROW EXECUTE FUNCTION chaos_disk();
    CREATE TRIGGER chaos BEFORE INSERT OR UPDATE ON outbox_events
        FOR EACH ROW EXECUTE FUNCTION chaos_disk();
    CREATE TRIGGER chaos BEFORE INSERT OR UPDATE ON idempotency_keys
        FOR EACH ROW EXECUTE FUNCTION chaos_disk();
"""


@dataclasses.dataclass
class World:
    """What faults work on, and what they leave for the auditor."""

    shop: Shop
    chance: random.Random
    smtp: SmtpServer  # listens within `slow_smtp` alone: the second provider is away otherwise
    losses: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    stops: list[tuple[str, float]] = dataclasses.field(default_factory=list)
    wrong: list[str] = dataclasses.field(default_factory=list)
    held: set[str] = dataclasses.field(default_factory=set)  # topics that took nothing for a while

    def some(self, low: float, high: float) -> None:
        """Let a fault last."""
        time.sleep(self.chance.uniform(low, high))

    def any_process(self) -> str:
        return self.chance.choice(PROCESSES)

    def stop_gently(self, name: str, *, grace: float = 15.0) -> None:
        """SIGTERM, and by force if it does not end within its grace, which is a finding."""
        began = time.monotonic()
        if self.shop.terminate(name, seconds=grace):
            self.stops.append((name, time.monotonic() - began))
        else:
            self.wrong.append(f"{name} did not end within {grace:g} s of SIGTERM")


def kill(world: World) -> str:
    name = world.any_process()
    world.shop.kill(name)
    world.some(0, 2)
    world.shop.start(name, wait=False)
    return name


def kill_both_workers(world: World) -> str:
    for name in ("worker", "worker:2"):
        world.shop.kill(name)
    world.some(0, 1)
    world.shop.start("worker", "worker:2")
    return "worker, worker:2"


def freeze(world: World) -> str:
    name = world.any_process()
    world.shop.signal(name, signal.SIGSTOP)
    world.some(1, 8)
    world.shop.signal(name, signal.SIGCONT)
    return name


def restart(world: World) -> str:
    name = world.any_process()
    world.stop_gently(name)
    world.shop.start(name, wait=False)
    return name


def deploy(world: World) -> str:
    for name in PROCESSES:
        world.stop_gently(name)
        world.shop.start(name)
    return "all, one after the other"


def second_beat(world: World) -> str:
    world.shop.start("beat:2")
    world.some(3, 8)
    world.shop.kill("beat:2")
    return "for a while"


def wrong_clock(world: World) -> str:
    offset = world.chance.choice([-300, 300])
    world.stop_gently("worker")
    world.shop.start("worker", CHAOS_CLOCK=str(offset), PYTHONPATH=str(CLOCK))
    world.some(6, 12)
    world.stop_gently("worker")
    world.shop.start("worker")
    return f"a worker {offset:+d} s off"


def postgres_killed(world: World) -> str:
    world.shop.restart_postgres_hard()
    return "SIGKILL, then started"


def postgres_restarted(world: World) -> str:
    world.shop.postgres.stop()
    world.some(0, 2)
    world.shop.postgres.start(log=world.shop.folder / "postgres.log")
    return "stopped, then started"


def backends_terminated(world: World) -> str:
    with psycopg.connect(world.shop.postgres.url, autocommit=True) as connection:
        for _ in range(world.chance.randint(1, 5)):
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            world.some(0.2, 0.8)
    return "all of them"


def disk_full(world: World) -> str:
    with psycopg.connect(world.shop.postgres.url, autocommit=True) as connection:
        connection.execute("INSERT INTO chaos_full DEFAULT VALUES")
        world.some(1, 4)
        connection.execute("DELETE FROM chaos_full")
    return "every write refused"


def postgres_frozen(world: World) -> str:
    with world.shop.postgres_frozen():
        world.some(3, 12)
    return "SIGSTOP for all of it"


def backends_frozen(world: World) -> str:
    with world.shop.backends_frozen(most=world.chance.randint(1, 6)) as count:
        world.some(3, 10)
    return f"SIGSTOP for {count}"


def packets_dropped(world: World) -> str:
    assert world.shop.proxy is not None
    world.shop.proxy.drop()
    world.some(2, 12)
    world.shop.proxy.forward()
    return "between all processes and PostgreSQL; what was sent arrives late"


def topic_of_wrong_type(world: World) -> str:
    topic = world.chance.choice([*TOPICS, PAYMENT])
    world.held.add(topic)
    with redis.Redis.from_url(world.shop.valkey.url) as client:
        was_there = client.exists(topic)
        if was_there:
            client.rename(topic, f"{topic}:aside")
        client.set(topic, "no stream")
        world.some(2, 6)
        client.delete(topic)
        if was_there:
            client.rename(f"{topic}:aside", topic)
    return topic


def valkey_killed(world: World) -> str:
    began = time.time()
    world.shop.restart_valkey_hard(pause=world.chance.uniform(0, 3))
    world.losses.append((began - 2.5, time.time() + 0.5))
    return "SIGKILL, then started"


def valkey_frozen(world: World) -> str:
    process = world.shop.valkey._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    world.some(1, 6)
    process.send_signal(signal.SIGCONT)
    return "SIGSTOP"


def valkey_flushed(world: World) -> str:
    began = time.time()
    with redis.Redis.from_url(world.shop.valkey.url) as client:
        client.flushall()
    world.losses.append((began - 2.5, time.time() + 0.5))
    return "FLUSHALL"


def provider(world: World) -> str:
    kind, options = world.chance.choice(
        [
            ("status", {"status": 503}),
            ("status", {"status": 500, "probability": 0.5}),
            ("status", {"status": 429, "headers": {"Retry-After": "2"}}),
            ("slow", {"seconds": 1.0}),
            ("hang", {"seconds": 4.0, "probability": 0.3}),
            ("reset", {"probability": 0.5}),
            ("accept_then_reset", {"probability": 0.3}),
            ("accept_then_hang", {"seconds": 4.0, "probability": 0.3}),
            ("refuse", {"seconds": 3.0}),
        ]
    )
    world.shop.sandbox.fail(kind=kind, **options)  # type: ignore[arg-type]
    world.some(2, 6)
    world.shop.sandbox.heal()
    return f"{kind} {options}"


def brown_out(world: World) -> str:
    world.shop.sandbox.fail(kind="status", status=500, probability=0.35)
    world.some(8, 15)
    world.shop.sandbox.heal()
    return "35 % of all sends answered 500"


def poisonous_recipients(world: World) -> str:
    world.shop.sandbox.fail(kind="status", status=503, to=POISON)
    world.some(8, 15)
    world.shop.sandbox.heal()
    return "503 for some recipients"


def slow_smtp(world: World) -> str:
    before = world.smtp.accepted
    world.shop.sandbox.fail(kind="status", status=503, provider="sendgrid")
    with world.smtp:
        world.some(12, 20)
        world.shop.sandbox.heal()
        world.some(5, 6)  # what is in flight
    return f"{world.smtp.delay:g} s for each reply, {world.smtp.accepted - before} mails taken"


Fault = Callable[[World], str]
#: How often each comes, relative to the others.
FAULTS: dict[Fault, int] = {
    kill: 8,
    kill_both_workers: 2,
    freeze: 5,
    restart: 4,
    deploy: 1,
    second_beat: 1,
    wrong_clock: 1,
    postgres_killed: 2,
    postgres_restarted: 1,
    backends_terminated: 2,
    disk_full: 2,
    valkey_killed: 2,
    valkey_frozen: 2,
    valkey_flushed: 1,
    provider: 6,
    postgres_frozen: 2,
    backends_frozen: 2,
    packets_dropped: 2,
    topic_of_wrong_type: 2,
    brown_out: 2,
    poisonous_recipients: 2,
    slow_smtp: 1,
}
