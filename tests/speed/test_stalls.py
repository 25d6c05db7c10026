"""Partition upkeep beside writers and a long reader: how long the writers waited, as pg_locks has it."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from tests.kit.months import Steps, dsn, fill, make_partition, states, tidy
from tests.kit.waiting import PATIENCE
from tests.kit.words import (
    DetachedPartition,
    EmailNotification,
    detach,
    exclusive_lock,
    new_id,
    partitions,
)

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])

WRITERS = 4
EACH_PER_SECOND = 50
READS_FOR = 5.0
INSERT = """
    INSERT INTO email_notifications (id, status, retry_count, max_retries, last_error, errors, provider,
        provider_message_id, correlation_id, traceparent, sent_at, event_type, recipient_email, to_name,
        locale, subject, body, body_text, idempotency_key, order_id)
    VALUES (%s, 'sent', 0, 3, '', '[]', '', '', '', '', now(), 'order.paid', 'a@example.com', '', 'en', 's',
        'b', 'b', '', gen_random_uuid())
"""
WAITS = """
    SELECT extract(epoch FROM clock_timestamp() - waitstart) AS seconds, locktype, relation::regclass::text,
        mode, (SELECT string_agg(query, '; ') FROM pg_stat_activity AS other
               WHERE other.pid = ANY(pg_blocking_pids(locks.pid)))
    FROM pg_locks AS locks JOIN pg_stat_activity AS writer USING (pid)
    WHERE NOT granted AND locktype = 'relation' AND application_name = 'writer' AND waitstart IS NOT NULL
        AND datname = current_database()
    ORDER BY 1 DESC LIMIT 1
"""


class Traffic:
    """200 inserts a second, a reader with a transaction open for 5 seconds, and what the writers waited."""

    def __init__(self) -> None:
        self.written = 0
        self.longest: tuple[float, *tuple[str, ...]] = (0.0,)  # seconds, and what for
        self.reading = threading.Event()
        self.done = threading.Event()

    def write(self) -> None:
        with psycopg.connect(dsn(), autocommit=True, application_name="writer") as session:
            while not self.done.is_set():
                session.execute(INSERT, [new_id()])
                self.written += 1
                time.sleep(1 / EACH_PER_SECOND)

    def read(self) -> None:
        with psycopg.connect(dsn()) as session:
            session.execute("SELECT count(*) FROM email_notifications")
            self.reading.set()
            self.done.wait(READS_FOR)

    def watch(self) -> None:
        with psycopg.connect(dsn(), autocommit=True) as session:
            while not self.done.is_set():
                if wait := session.execute(WAITS).fetchone():
                    self.longest = max(self.longest, (float(wait[0]), *wait[1:]), key=lambda stall: stall[0])
                time.sleep(0.01)


@contextmanager
def traffic() -> Iterator[Traffic]:
    it = Traffic()
    work: list[Callable[[], None]] = [it.write] * WRITERS + [it.read, it.watch]
    threads = [threading.Thread(target=target) for target in work]
    for thread in threads:
        thread.start()
    try:
        assert it.reading.wait(PATIENCE)
        yield it
    finally:
        it.done.set()
        for thread in threads:
            thread.join()


@pytest.fixture(autouse=True)
def _tidy() -> Iterator[None]:
    with tidy():
        yield


def test_ensure_detach_and_drop_stall_no_write(fast, monkeypatch):
    monkeypatch.setattr(detach, "wait_for_readers", lambda **_: None)
    # The detach is cut short, and finished while the reader still reads or after.
    fast.locks("1s")
    old = make_partition(EmailNotification, back=4)
    fill(old, 10)
    with traffic() as it:
        made = partitions.make_missing(
            model=EmailNotification, using="default", ahead=partitions.AHEAD["month"] + 2
        )
        assert len(made) == 2
        with exclusive_lock(model=EmailNotification, using="default"):
            detach.detach(
                model=EmailNotification,
                name=old.name,
                report=Steps(),
            )
            detach.drop(record=DetachedPartition.objects.get(), report=Steps())
    assert old.name not in states()
    assert it.written > 0
    assert it.longest[0] < 0.1, it.longest


def test_the_measure_would_see_a_stall():
    now = dt.datetime.now(dt.UTC)
    far = partitions.partition_at(model=EmailNotification, when=now, steps=partitions.AHEAD["month"] + 3)
    with traffic() as it, psycopg.connect(dsn(), autocommit=True) as careless:
        careless.execute("SET lock_timeout = '1s'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            careless.execute(
                f"CREATE TABLE {far.name} PARTITION OF email_notifications FOR VALUES FROM"
                f" ('{partitions.id_floor(far.since)}') TO ('{partitions.id_floor(far.until)}')"
            )
    assert it.longest[0] > 0.1
