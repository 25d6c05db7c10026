"""Claims, drains and the admin beside ever more sent rows; and a drain while a session holds its snapshot."""

from __future__ import annotations

import json
import time
from typing import Any

import psycopg

from benchmarks import drain, rows
from benchmarks.rig import Rig


def grow(rig: Rig, *, to: int) -> None:
    """Add sent e-mails of the last 28 days until there are `to`."""
    with psycopg.connect(rig.postgres.url, autocommit=True) as connection:
        (there,) = connection.execute("SELECT count(*) FROM email_notifications").fetchone() or (0,)
        step = max(1, (to - there) // 14)
        for part in range(14):
            rows.mails(connection, step, status="sent", age=2.0 * part, small=True)
        connection.execute("VACUUM (ANALYZE) email_notifications")


def measure(rig: Rig, *, count: int) -> dict[str, float]:
    """Measure a claim, a drain and the admin beside the rows that are there."""
    with psycopg.connect(rig.postgres.url, autocommit=True) as connection:
        rows.mails(connection, 2000)
        connection.execute("ANALYZE email_notifications")
    claim = float(rig.python("-m", "benchmarks.ours", "claim", "50").split()[0])
    pages = json.loads(rig.python("-m", "benchmarks.ours", "admin"))
    drained = drain.measure(rig, "orderpost", count=count, delay=0.02)
    return {"claim ms": claim, "mails/s": drained["mails/s"], **pages}


def held(rig: Rig, *, count: int, rounds: int) -> list[dict[str, Any]]:
    """Drain `count` mails several times while a session holds one snapshot throughout."""
    found = []
    with psycopg.connect(rig.postgres.url) as holder:
        holder.execute("SET idle_in_transaction_session_timeout = 0")
        holder.commit()
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM email_notifications")
        began = time.monotonic()
        for _ in range(rounds):
            result = drain.measure(rig, "orderpost", count=count, delay=0.02)
            found.append({"held for s": time.monotonic() - began, **result})
    return found
