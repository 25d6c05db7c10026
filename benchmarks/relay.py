"""Events relayed to Redis Streams: how many a second, on servers of its own.

.venv/bin/python benchmarks/relay.py --events 10000
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from config.local.machine import free_port
from config.local.servers import EmbeddedPostgres, EmbeddedValkey

EVENTS = """
    INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, version, sequence, payload,
        metadata, shard, retry_count, last_error)
    SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7'
            || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 4, 15))::uuid,
        'order', lpad(to_hex(n %% 500 + 1), 32, '0')::uuid, 'order.order.paid.v1', 1, n / 500,
        jsonb_build_object('orderId', gen_random_uuid(), 'userId', gen_random_uuid(), 'status', 'paid',
            'totalAmount', 4200, 'refundedAmount', 0, 'currency', 'EUR'),
        jsonb_build_object('traceId', null, 'correlationId', md5(n::text), 'idempotencyKey', n::text),
        (n %% 500) %% 64, 0, ''
    FROM generate_series(1, %s) AS n
"""


def main() -> None:
    """Write, relay, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=10_000)
    events = parser.parse_args().events
    with tempfile.TemporaryDirectory(prefix="orderpost-relay-") as folder:
        postgres = EmbeddedPostgres(data=Path(folder) / "postgres", port=free_port())
        valkey = EmbeddedValkey(data=Path(folder) / "valkey", port=free_port())
        postgres.start(log=Path(folder) / "postgres.log")
        valkey.start(log=Path(folder) / "valkey.log")
        os.environ |= {
            "DATABASE_URL": postgres.url,
            "REDIS_URL": valkey.url,
            "SECRET_KEY": "benchmark",
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "LOG_LEVEL": "ERROR",
        }
        try:
            run(events)
        finally:
            for server in (valkey, postgres):
                server.stop()
                server.remove()


def run(events: int) -> None:
    """Three rounds."""
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import connection

    from outbox.relay import Relay

    call_command("migrate", verbosity=0)
    relay = Relay()
    relay.step()
    for number in range(3):
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM outbox_events")
            cursor.execute(EVENTS, [events])
        before, cpu, began = relay.published, time.process_time(), time.perf_counter()
        while relay.step():
            pass
        took, used = time.perf_counter() - began, time.process_time() - cpu
        assert relay.published - before == events
        print(
            f"round {number + 1}: {events / took:8,.0f} events a second,"
            f" {used / events * 1e6:4.0f} µs of the relay's CPU for each"
        )
    relay.close()


if __name__ == "__main__":
    main()
