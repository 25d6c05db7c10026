"""The faults, each as a function that causes it, waits, and removes it. Only tests.chaos.run calls them.

Call them only from the main thread, because Linux kills a guarded process when its starting thread exits.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import redis

from tests.chaos.bad_items import malformed_entries, unknown_bulk_job, unusual_stream_ids
from tests.chaos.provider_faults import (
    accepted_then_504,
    brown_out,
    poisonous_recipients,
    provider,
    slow_smtp,
    tls_garbage,
)
from tests.chaos.rollovers import rollover
from tests.chaos.world import PROCESSES, SENDERS, World
from tests.kit.listener import TOPICS
from tests.kit.servers import frozen
from tests.kit.shop import PAYMENT

CLOCK = Path(__file__).parent / "clock"

#: While chaos_full has a row, every write fails as on a full disk.
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


def kill(world: World) -> str:
    name = world.any_process()
    world.kill(name)
    world.some(0, 2)
    world.shop.start(name, wait=False)
    return name


def kill_both_workers(world: World) -> str:
    world.kill("worker", "worker:2")
    world.some(0, 1)
    world.shop.start("worker", "worker:2")
    return "worker, worker:2"


def freeze(world: World) -> str:
    name = world.any_process()
    world.shop.signal(name, signal.SIGSTOP)
    if name in SENDERS:
        world.note_in_flight()
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
    world.note_in_flight()
    with frozen(world.shop.postgres):
        world.some(3, 12)
    return "SIGSTOP for all of it"


def backends_frozen(world: World) -> str:
    world.note_in_flight()
    with world.shop.backends_frozen(most=world.chance.randint(1, 6)) as count:
        world.some(3, 10)
    return f"SIGSTOP for {count}"


def packets_dropped(world: World) -> str:
    assert world.shop.proxy is not None
    world.shop.proxy.drop()
    world.note_in_flight()
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
    with frozen(world.shop.valkey):
        world.some(1, 6)
    return "SIGSTOP"


def valkey_flushed(world: World) -> str:
    began = time.time()
    with redis.Redis.from_url(world.shop.valkey.url) as client:
        client.flushall()
    world.losses.append((began - 2.5, time.time() + 0.5))
    return "FLUSHALL"


Fault = Callable[[World], str]
#: How often each fault happens, relative to the others.
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
    accepted_then_504: 3,
    tls_garbage: 3,
    unusual_stream_ids: 2,
    malformed_entries: 2,
    unknown_bulk_job: 1,
    rollover: 1,
}
