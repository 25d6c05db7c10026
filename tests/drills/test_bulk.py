"""Jobs with a kill or a failover in their middle: 2,000 dead letters are resent, and a person is erased."""

from __future__ import annotations

import psycopg
import pytest

from tests.kit.paired import SETTINGS, PairedShop
from tests.kit.shop import Shop

pytestmark = [pytest.mark.flow, pytest.mark.drill]
COUNT = 2000

MAKE = f"""
    INSERT INTO email_notifications (id, order_id, event_type, status, ended_by, last_error,
        recipient_email, to_name, locale, subject, body, body_text, idempotency_key, retry_count, max_retries,
        errors, provider, provider_message_id, correlation_id, traceparent)
    SELECT uuidv7(), uuidv7(), 'order.paid', 'dead_lettered', 'provider', '400 blocked',
        'user' || n || '@example.com', '', 'en', 'Paid', '<p>Paid</p>', 'Paid', n::text, 0, 3,
        '[]', 'sendgrid', '', 'c' || n, ''
    FROM generate_series(1, {COUNT}) AS n
"""
START = (
    "from django.contrib.auth.models import User;"
    " from runtime.audit import Actor; from tests.kit.words import dead_causes, job_waker, start_job;"
    " job_waker.wake = lambda: None;"
    " print(start_job(action='notifications.resend', filter={'cause': dead_causes()[0].cause},"
    " user=User.objects.create_superuser('ann'), by=Actor('ann')).id)"
)


def assert_each_row_once(shop: Shop) -> None:
    assert shop.query("SELECT state, done_count, refused_count FROM bulk_jobs") == [("done", COUNT, 0)]
    [(lines, rows)] = shop.query(
        "SELECT count(*), count(DISTINCT subject_id) FROM audit_rows WHERE kind = 'resend'"
    )
    assert lines == rows == COUNT


def test_all_are_sent_once_though_the_worker_is_killed_in_the_middle():
    with Shop(EMAIL_RATE_LIMIT="300") as shop:
        shop.query(MAKE)
        shop.manage("shell", "-c", START)
        shop.start("worker", "beat")
        done = "SELECT done_count FROM bulk_jobs"
        shop.until(lambda: shop.query(done)[0][0] >= 500, "the job has done a batch")
        shop.kill("worker")
        [(stopped_at,)] = shop.query(done)
        shop.start("worker")
        shop.until(lambda: shop.all_sent(COUNT), "all are sent")
        assert_each_row_once(shop)
        assert stopped_at <= COUNT
        accepted = shop.accepted()
        assert len(accepted) == COUNT
        # What was in flight when the worker died may have been accepted; the job itself doubles nothing.
        assert sum(accepted.values()) - COUNT <= 32


def test_all_are_sent_once_though_postgresql_fails_over_in_the_middle():
    with PairedShop(**SETTINGS, EMAIL_RATE_LIMIT="300") as shop:
        shop.query(MAKE)
        shop.manage("shell", "-c", START)
        shop.start("worker", "beat")
        done = "SELECT done_count FROM bulk_jobs"
        shop.until(lambda: shop.query(done)[0][0] >= 500, "the job has done a batch")
        shop.pair.fail_over()
        assert shop.processes["worker"].poll() is None

        def all_sent() -> bool:
            try:
                return bool(shop.all_sent(COUNT))
            except psycopg.OperationalError:
                return False

        shop.until(all_sent, "all are sent")
        assert_each_row_once(shop)
        assert list(shop.accepted().values()) == [1] * COUNT


PLACE = f"""
    INSERT INTO orders (id, source, status, version, user_id, email, name, locale, reference, items,
        total_amount, refunded_amount, currency, correlation_id, created_at, updated_at)
    SELECT uuidv7(), '', 'completed', 1, uuidv7(), 'ann@example.com', 'Ann', 'en', '', '[]', 1, 0, 'USD', '',
        now(), now()
    FROM generate_series(1, {COUNT})
"""
ERASE = (
    "from django.contrib.auth.models import User; from runtime.audit import Actor;"
    " from tests.kit.words import job_waker, person_jobs;"
    " job_waker.wake = lambda: None;"
    " person_jobs.start_erasure("
    "email='ann@example.com', force=False, by=Actor('op'), user=User.objects.create_superuser('op'))"
)


def test_a_person_is_erased_though_the_worker_is_killed_in_the_middle():
    with Shop() as shop:
        shop.query(PLACE)
        shop.manage("shell", "-c", ERASE)
        shop.start("worker", "beat")
        shop.until(lambda: shop.query("SELECT done_count FROM bulk_jobs")[0][0] >= 500, "the job has begun")
        shop.kill("worker")
        [(left,)] = shop.query("SELECT count(*) FROM orders WHERE email = 'ann@example.com'")
        assert left
        shop.query(
            "UPDATE bulk_jobs SET updated_at = now() - interval '1 hour'"
        )  # instead of a minute's wait
        shop.start("worker")
        shop.until(lambda: shop.query("SELECT state, address FROM bulk_jobs") == [("done", "")], "it is done")
        assert shop.query("SELECT count(*) FROM orders WHERE email = 'ann@example.com'") == [(0,)]
