"""A bulk job changes every row that matched at its start, each once, whatever happens in between."""

from __future__ import annotations

import datetime as dt
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection, connections
from django.db.models.functions import Now

from notifications import bulk_actions
from outbox.tasks import run_bulk_jobs
from tests.kit.jobs import run_jobs
from tests.kit.mails import make_mail, make_mails, statuses
from tests.kit.months import dsn
from tests.kit.waiting import until
from tests.kit.words import (
    RETRY_BASE,
    BulkJob,
    EmailNotification,
    InboundDeadLetter,
    OutboxEvent,
    bulk,
    new_id,
    tasks,
)

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(bulk, "CHUNK", 20)
    monkeypatch.setattr(bulk.waker, "wake", lambda: None)


def start(action="notifications.resend", filter=None, reason="", name="ann") -> BulkJob:
    user, _ = User.objects.get_or_create(username=name, is_staff=True, is_superuser=True)
    return bulk.start_job(
        action=action, filter=filter or {"status": "dead_lettered"}, user=user, reason=reason
    )


def logged() -> Counter[str]:
    return Counter(str(id) for id in LogEntry.objects.values_list("object_id", flat=True))


def test_it_changes_each_row_once_and_logs_who_did_it_why_and_in_which_job():
    make_mails(50, status="dead_lettered")
    make_mails(5, status="sent")
    job = start(reason="SPF mended")
    assert (job.total, job.state) == (50, "running")
    run_jobs()
    job.refresh_from_db()
    assert (job.state, job.done_count, job.refused_count) == ("done", 50, 0)
    assert statuses() == {"pending": 50, "sent": 5}
    assert set(logged().values()) == {1} and len(logged()) == 50
    entry = LogEntry.objects.first()
    assert entry.user.username == "ann"
    assert entry.change_message == f"Resent (was dead_lettered). SPF mended (job {job.id})"


def test_what_matches_only_after_the_start_is_left_alone():
    old = make_mail(status="dead_lettered")
    later = make_mail(status="failed")
    job = start()
    new = make_mail(status="dead_lettered")
    EmailNotification.objects.filter(id=later.id).update(status="dead_lettered", updated_at=Now())
    run_jobs()
    job.refresh_from_db()
    assert job.done_count == 1
    assert list(LogEntry.objects.values_list("object_id", flat=True)) == [str(old.id)]
    assert set(EmailNotification.objects.dead()) == {later, new}


class Killed(BaseException):
    """The end of the process."""


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_a_process_that_dies_in_a_batch_leaves_it_undone_and_the_next_goes_on(monkeypatch, batch):
    make_mails(50, status="dead_lettered")
    job = start()
    log, calls = bulk._log, []

    def dies(*arguments):
        log(*arguments)
        calls.append(1)
        if len(calls) == batch:
            raise Killed

    monkeypatch.setattr(bulk, "_log", dies)
    with pytest.raises(Killed):
        run_jobs()
    assert len(logged()) == (batch - 1) * 20 == statuses().get("pending", 0)
    assert bulk.run_batch() is False  # its process may be at work still
    BulkJob.objects.filter(id=job.id).update(updated_at=Now() - dt.timedelta(seconds=RETRY_BASE))
    run_jobs()
    job.refresh_from_db()
    assert (job.state, job.done_count) == ("done", 50)
    assert set(logged().values()) == {1} and len(logged()) == 50


@pytest.mark.django_db(transaction=True)
def test_two_processes_at_once_do_each_row_once():
    make_mails(200, status="dead_lettered")
    job = start()

    def run():
        run_jobs()
        connections.close_all()

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    job.refresh_from_db()
    assert (job.state, job.done_count, job.refused_count) == ("done", 200, 0)
    assert set(logged().values()) == {1} and len(logged()) == 200


@pytest.mark.django_db(transaction=True)
def test_a_process_that_only_looked_for_a_job_costs_it_no_try(monkeypatch):
    """PostgreSQL locks a row and then finds that the row no longer matches; the lock outlives that."""
    make_mails(1, status="dead_lettered")
    job = start()
    with psycopg.connect(dsn()) as reader, psycopg.connect(dsn()) as watcher, ThreadPoolExecutor(1) as pool:
        work = bulk._work
        ended = threading.Event()

        def waits_for_the_reader() -> bool:
            waiting = "SELECT FROM pg_locks WHERE NOT granted AND %s = ANY (pg_blocking_pids(pid))"
            return (
                ended.is_set() or watcher.execute(waiting, [reader.info.backend_pid]).fetchone() is not None
            )

        def release():
            until(waits_for_the_reader)
            reader.rollback()

        def work_while_it_is_read(id, action):
            reader.execute("SELECT FROM bulk_jobs WHERE id = %s FOR UPDATE", [id])
            released = pool.submit(release)
            work(id, action)
            ended.set()
            released.result()

        monkeypatch.setattr(bulk, "_work", work_while_it_is_read)
        bulk.run_batch()
    job.refresh_from_db()
    assert (job.state, job.done_count, job.tries) == ("done", 1, 0)


def test_a_stopped_job_changes_nothing_more(monkeypatch):
    make_mails(50, status="dead_lettered")
    job = start()
    work = bulk._work
    monkeypatch.setattr(bulk, "_work", lambda id, action: (work(id, action), BulkJob.objects.stop(id=id)))
    run_jobs()
    job.refresh_from_db()
    assert (job.state, job.done_count) == ("stopped", 20)
    assert statuses() == {"pending": 20, "dead_lettered": 30}
    assert BulkJob.objects.stop(id=job.id) is False
    run_jobs()


@pytest.mark.parametrize("status", ["dead_lettered", "failed"])
def test_rows_that_are_refused_are_counted_by_their_reason(status):
    doubt = {
        "at": dt.datetime.now(dt.UTC).isoformat(),
        "provider": "sendgrid",
        "outcome": "ambiguous",
        "text": "?",
    }
    held = make_mail(status=status, errors=[doubt])
    make_mail(status=status)
    job = start(filter={"status": status})
    run_jobs()
    job.refresh_from_db()
    assert (job.done_count, job.refused_count) == (1, 1)
    assert list(job.refusals.values()) == [1] and "held" in next(iter(job.refusals))
    held.refresh_from_db()
    assert (held.status, held.resent_at) == (status, None)


def test_a_job_of_a_deleted_user_stops():
    make_mail(status="dead_lettered")
    job = start(name="gone")
    User.objects.get(username="gone").delete()
    run_jobs()
    job.refresh_from_db()
    assert (job.state, job.error, job.done_count, job.username) == (
        "stopped",
        "its user was deleted",
        0,
        "gone",
    )


def test_the_poll_has_a_job_gone_on_with_that_was_left(monkeypatch):
    woken = []
    monkeypatch.setattr(bulk.waker, "wake", lambda: woken.append(1))
    make_mail(status="dead_lettered")
    job = start()
    woken.clear()
    tasks.poll_outbox()
    assert woken == []  # somebody works at it: each poll would add a task that wakes another
    BulkJob.objects.filter(id=job.id).update(updated_at=Now() - dt.timedelta(seconds=61))
    tasks.poll_outbox()
    assert woken == [1]
    run_jobs()
    BulkJob.objects.filter(id=job.id).update(updated_at=Now() - dt.timedelta(seconds=61))
    tasks.poll_outbox()
    assert woken == [1]


def test_a_task_does_one_batch_and_asks_for_the_next(monkeypatch):
    """Drains that wait in the queue come between two batches."""
    woken = []
    monkeypatch.setattr(bulk.waker, "wake", lambda: woken.append(1))
    make_mails(50, status="dead_lettered")
    job = start()
    woken.clear()
    for done in (20, 40, 50):
        run_bulk_jobs()
        job.refresh_from_db()
        assert job.done_count == done
    assert (job.state, len(woken)) == ("done", 3)
    run_bulk_jobs()
    assert len(woken) == 3


def test_a_filter_means_the_rows_of_its_start():
    make_mails(3, status="dead_lettered")
    make_mail(status="dead_lettered", event_type="order.cancelled")
    job = start(
        action="notifications.give_up", filter={"status": "dead_lettered", "event_type": "order.cancelled"}
    )
    run_jobs()
    job.refresh_from_db()
    assert (job.total, job.done_count) == (1, 1)
    assert statuses() == {"dead_lettered": 3, "discarded": 1}


def test_a_job_on_nothing_is_done_at_once():
    job = start()
    run_jobs()
    job.refresh_from_db()
    assert (job.state, job.total) == ("done", 0)


@pytest.mark.parametrize(
    "action", ["outbox.republish", "outbox.discard", "outbox.replay", "outbox.discard_inbound"]
)
def test_dead_events_can_be_changed_in_bulk_too(action):
    event = {"aggregate_type": "t", "aggregate_id": new_id(), "event_type": "t.v1", "payload": {}, "shard": 1}
    for sequence in range(25):
        OutboxEvent.objects.create(**event, sequence=sequence, dead_lettered_at=Now(), retry_count=4)
        letter = {"topic": "t.v1", "event_id": new_id(), "consumer": "c", "envelope": "{}", "error": "e"}
        InboundDeadLetter.objects.create(**letter)
    job = start(action=action, filter={"since": "2020-01-01"})
    run_jobs()
    job.refresh_from_db()
    assert (job.state, job.done_count, job.refused_count) == ("done", 25, 0)
    assert set(logged().values()) == {1} and len(logged()) == 25


def test_the_names_of_the_actions_stay_for_they_are_stored():
    assert sorted(bulk.ACTIONS) == [
        "notifications.give_up",
        "notifications.mark_sent",
        "notifications.render_again",
        "notifications.resend",
        "orders.erase_person",
        "orders.export_person",
        "outbox.discard",
        "outbox.discard_inbound",
        "outbox.replay",
        "outbox.republish",
    ]


def test_a_batch_of_many_dead_letters_reads_an_index():
    make_mails(20_000, status="sent")
    make_mails(2_000, status="dead_lettered")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE email_notifications")
    for filter in ({"status": "dead_lettered"}, {"cause": "a" * 16}):
        rows = bulk_actions.RESEND.rows(filter, dt.datetime.now(dt.UTC)).filter(
            id__gt=new_id().int and "0" * 32
        )
        plan = rows.order_by("id")[:500].explain()
        assert f"Seq Scan on email_notifications_p{dt.datetime.now(dt.UTC):%Y%m}" not in plan, plan
