"""`python -m benchmarks.archives`: build, size and speed of the index beside archives, over months of e-mails.

    .venv/bin/python -m benchmarks.archives --months 12 --rows 250000

Each month has `--rows` e-mails as the templates render them, with texts of their own, to `--customers`
customers; days of events go with them. Every month is archived, indexed and dropped by a rollover. Then
`manage.py archive find` is timed as a process of its own and inside one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from config.local.machine import PROJECT, free_port
from config.local.servers import EmbeddedPostgres

ID = """(lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || substr(hash, 1, 3)
            || '8' || substr(hash, 4, 15))::uuid"""
NUMBERS = """(SELECT n, md5(%(salt)s || n) AS hash, md5('order' || %(salt)s || n)::uuid AS order_id,
              %(since)s::timestamptz + (%(until)s::timestamptz - %(since)s) * n / (%(rows)s::int + 1) AS at
          FROM generate_series(1, %(rows)s::int) AS n) AS numbers"""
MAILS = f"""
    INSERT INTO {{table}} (id, status, retry_count, max_retries, last_error, errors, provider,
        provider_message_id, correlation_id, traceparent, created_at, updated_at, sent_at, event_type,
        recipient_email, to_name, locale, subject, body, body_text, idempotency_key, order_id)
    SELECT {ID}, 'sent', 0, 3, '', '[]', 'sendgrid', hash, hash, '', at, at, at, 'order.paid',
        'user' || abs(hashint4(n)) %% %(customers)s || '@example.com', 'User ' || n, 'en', 'Your order ' || n,
        replace(%(html)s, 'NUMBER', hash), replace(%(text)s, 'NUMBER', hash), hash, order_id
    FROM {NUMBERS}
"""
EVENTS = f"""
    INSERT INTO {{table}} (id, aggregate_type, aggregate_id, event_type, version, sequence, shard, payload,
        metadata, correlation_id, traceparent, created_at, retry_count, next_attempt_at, last_error, published_at)
    SELECT {ID}, 'order', order_id, 'order.order.paid.v1', 1, 2, n %% 64,
        jsonb_build_object('orderId', order_id, 'status', 'paid', 'totalAmount', n, 'currency', 'EUR'),
        '{{{{}}}}', hash, '', at, 0, at, '', at
    FROM {NUMBERS}
"""
