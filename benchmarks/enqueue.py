"""Measure the CPU that a process uses to save a change and its mail: orderpost, the peers, and bare SQL.

Each change is a transaction on one connection. Orderpost locks and updates the order, and writes the e-mail,
its key and the domain event. The peers update an order and queue a mail with a given text. The bare SQL
updates an order and inserts an e-mail.
"""

from __future__ import annotations

import uuid

import psycopg

from benchmarks.rig import Rig, own_cpu
from benchmarks.rows import HTML, SUBJECT, TEXT, place

_BARE = """
    INSERT INTO email_notifications (id, status, retry_count, max_retries, last_error, errors, provider,
        provider_message_id, correlation_id, traceparent, event_type, recipient_email, to_name, locale,
        subject, body, body_text, idempotency_key, order_id)
    VALUES (%s, 'pending', 0, 3, '', '[]', '', '', '', '', 'order.paid', %s, '', 'en', %s, %s, %s, %s, %s)
"""


def bare(rig: Rig, count: int) -> float:
    """Run the two statements with only psycopg. Return CPU ms for each transaction."""
    with psycopg.connect(rig.postgres.url, autocommit=True) as connection:
        orders = place(connection.cursor(), count + count // 5)

        def change(order: uuid.UUID) -> None:
            with connection.transaction():
                connection.execute("UPDATE orders SET status = 'paid', version = 2 WHERE id = %s", [order])
                to = f"{order.hex}@example.com"
                connection.execute(_BARE, [order, to, SUBJECT, HTML, TEXT, str(order), order])

        for order in orders[:-count]:
            change(order)
        before = own_cpu()
        for order in orders[-count:]:
            change(order)
        return (own_cpu() - before) / count * 1000


def measure(rig: Rig, count: int) -> dict[str, float]:
    """Measure each once. Return CPU ms for each change."""
    rendering, rendered = map(float, rig.python("-m", "benchmarks.ours", "enqueue", str(count)).split())
    figures = {"orderpost, rendering its mail": rendering, "orderpost, the text given": rendered}
    for peer in ("post_office", "task_each"):
        figures[peer] = float(rig.python("-m", "benchmarks.peers", "enqueue", peer, str(count)))
    figures["bare SQL"] = bare(rig, count)
    return figures
