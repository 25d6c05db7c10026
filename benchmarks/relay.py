"""Events relayed to Redis Streams: how many a second, and what each costs the relay."""

from __future__ import annotations

import os
import sys
import time

from benchmarks.rig import Rig, own_cpu

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


def measure(rig: Rig, *, count: int) -> dict[str, float]:
    """Write events by SQL and relay them in a separate process."""
    second, cpu = map(float, rig.python("-m", "benchmarks.relay", str(count)).split())
    return {"events/s": second, "cpu µs": cpu}


def run(count: int) -> None:
    """Write `count` events and relay them in this process; print events/s and CPU µs each."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    import django

    django.setup()
    from django.db import connection

    from outbox.events.relay import Relay

    relay = Relay()
    relay.step()
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM outbox_events")
        cursor.execute(EVENTS, [count])
    before, cpu, began = relay.published, own_cpu(), time.perf_counter()
    while relay.step():
        pass
    took, used = time.perf_counter() - began, own_cpu() - cpu
    assert relay.published - before == count
    relay.close()
    print(count / took, used / count * 1e6)


if __name__ == "__main__":
    run(int(sys.argv[1]))
