"""A bulk job changes every row that matched at its start, each once, whatever happens in between."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection
from django.db.models.functions import Now

from runtime.models.jobs import MAX_TRIES
from runtime.tasks import run_bulk_jobs
from tests.kit.acts import acts
from tests.kit.jobs import job_after, killed_at_the_end_of, let_pass, logged, run_jobs, started
from tests.kit.mails import make_mail, make_mails, statuses
from tests.kit.months import dsn
from tests.kit.plans import DEAD, plan_of, statements
from tests.kit.races import broken, together
from tests.kit.waiting import until
from tests.kit.words import (
    RESEND,
    RETRIES,
    BulkJob,
    DomainEvent,
    EmailNotification,
    InboundDeadLetter,
    new_id,
    run_batch,
    tasks,
)

pytestmark = pytest.mark.django_db


def test_it_changes_each_row_once_and_logs_who_did_it_why_and_in_which_job():
    make_mails(50, status="dead_lettered")
    make_mails(5, status="sent")
    job = started(reason="SPF mended")
    assert (job.total, job.state) == (50, "running")
    job = job_after(job)
    assert (job.state, job.done_count, job.refused_count) == ("done", 50, 0)
    assert statuses() == {"pending": 50, "sent": 5}
    assert set(logged().values()) == {1} and len(logged()) == 50
    entry = acts().first()
    assert entry.who == "ann"
    assert (entry.act, entry.reason) == (f"Resent (was dead_lettered). (job {job.id})", "SPF mended")


def test_what_matches_only_after_the_start_is_left_alone():
    later = make_mail(status="failed")  # its id is below that of the last row
    old = make_mail(status="dead_lettered")
    job = started()
    new = make_mail(status="dead_lettered")
    EmailNotification.objects.filter(id=later.id).update(
        status="dead_lettered", ended_by="provider", updated_at=Now()
    )
    assert job_after(job).done_count == 1
    assert logged().keys() == {str(old.id)}
    assert set(EmailNotification.objects.dead()) == {later, new}


def test_only_the_rows_of_its_filter_are_changed():
    make_mails(3, status="dead_lettered")
    make_mail(status="dead_lettered", event_type="order.cancelled")
    job = started("notifications.give_up", status="dead_lettered", event_type="order.cancelled")
    job = job_after(job)
    assert (job.total, job.done_count) == (1, 1)
    assert statuses() == {"dead_lettered": 3, "discarded": 1}


def test_a_job_on_nothing_is_done_at_once():
    job = job_after(started())
    assert (job.state, job.total) == ("done", 0)


def test_rows_that_are_refused_are_visited_once_and_counted_by_their_reason():
    now = dt.datetime.now(dt.UTC).isoformat()
    doubt = {"at": now, "provider": "sendgrid", "outcome": "ambiguous", "text": "?"}
    held = [make_mail(status="dead_lettered", errors=[doubt]) for _ in range(25)]
    make_mail(status="dead_lettered")
    job = started()
    assert run_batch() and run_batch() and not run_batch()
    job.refresh_from_db()
    assert (job.state, job.done_count, job.refused_count) == ("done", 1, 25)
    ((reason, count),) = job.refusals.items()
    assert "held" in reason and count == 25
    assert job.refused_ids == {reason: [str(mail.id) for mail in held]}
    held[0].refresh_from_db()
    assert (held[0].status, held[0].resent_at) == ("dead_lettered", None)


def test_it_keeps_the_ids_of_the_first_rows_left_alone_for_each_reason(monkeypatch):
    monkeypatch.setattr("runtime.jobs.run.KEPT_REFUSED", 12)
    sent, pending = ([make_mail(status=status) for _ in range(15)] for status in ("sent", "pending"))
    ids = ",".join(str(mail.id) for mail in (*sent, *pending))
    job = job_after(started(**{"ids": ids}))
    assert job.refused_count == 30 and len(job.refused_ids) == 2
    kept = {tuple(first) for first in job.refused_ids.values()}
    assert kept == {tuple(str(mail.id) for mail in mails[:12]) for mails in (sent, pending)}


@pytest.mark.parametrize(
    "action", ["events.republish", "events.discard", "events.replay", "events.discard_inbound"]
)
def test_dead_events_can_be_changed_in_bulk_too(action):
    event = {"aggregate_type": "t", "aggregate_id": new_id(), "event_type": "t.v1", "payload": {}, "shard": 1}
    for sequence in range(25):
        DomainEvent.objects.create(**event, sequence=sequence, dead_lettered_at=Now(), retry_count=4)
        letter = {"topic": "t.v1", "event_id": new_id(), "consumer": "c", "envelope": "{}", "error": "e"}
        InboundDeadLetter.objects.create(**letter)
    job = job_after(started(action, since="2020-01-01"))
    assert (job.state, job.done_count, job.refused_count) == ("done", 25, 0)
    assert set(logged().values()) == {1} and len(logged()) == 25


@pytest.mark.parametrize("batch", [1, 3])
def test_a_process_that_dies_in_a_batch_leaves_it_undone_and_the_next_goes_on(batch):
    make_mails(50, status="dead_lettered")
    job = started()
    with killed_at_the_end_of(batch):
        run_jobs()
    assert len(logged()) == (batch - 1) * 20 == statuses().get("pending", 0)
    assert run_batch() is False  # its process may be at work still
    job = job_after(job, seconds=RETRIES.base_seconds)
    assert (job.state, job.done_count) == ("done", 50)
    assert set(logged().values()) == {1} and len(logged()) == 50


def test_a_stopped_job_changes_nothing_more():
    make_mails(50, status="dead_lettered")
    job = started()
    assert run_batch() and BulkJob.objects.stop(id=job.id)
    job = job_after(job)
    assert (job.state, job.done_count) == ("stopped", 20)
    assert statuses() == {"pending": 20, "dead_lettered": 30}
    assert BulkJob.objects.stop(id=job.id) is False


@pytest.mark.django_db(transaction=True)
def test_processes_at_once_do_each_row_once():
    make_mails(200, status="dead_lettered")
    job = started()
    together(3, lambda _: run_jobs())
    job.refresh_from_db()
    assert (job.state, job.done_count, job.refused_count) == ("done", 200, 0)
    assert set(logged().values()) == {1} and len(logged()) == 200


@pytest.mark.django_db(transaction=True)
def test_a_process_that_only_looked_for_a_job_costs_it_no_try():
    """PostgreSQL locks a row and then finds that the row no longer matches; the lock outlives that."""
    make_mails(1, status="dead_lettered")
    job = started()
    has_begun = threading.Event()

    with psycopg.connect(dsn()) as reader, psycopg.connect(dsn()) as watcher, ThreadPoolExecutor(1) as pool:
        ended = threading.Event()

        def waits_for_the_reader() -> bool:
            waiting = "SELECT FROM pg_locks WHERE NOT granted AND %s = ANY (pg_blocking_pids(pid))"
            return (
                ended.is_set() or watcher.execute(waiting, [reader.info.backend_pid]).fetchone() is not None
            )

        def release() -> None:
            until(waits_for_the_reader)
            reader.rollback()

        def read_before_the_batch(execute: Any, sql: str, *rest: Any) -> Any:
            """Lock the job's row between the counted try and the batch."""
            if sql.endswith("FOR UPDATE") and not has_begun.is_set():
                has_begun.set()
                reader.execute("SELECT FROM bulk_jobs WHERE id = %s FOR UPDATE", [job.id])
                pool.submit(release)
            return execute(sql, *rest)

        with connection.execute_wrapper(read_before_the_batch):
            run_batch()
        ended.set()
    assert has_begun.is_set()
    job.refresh_from_db()
    assert (job.state, job.done_count, job.tries) == ("done", 1, 0)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("state", ["53100", "57P01", "58030", "25006"])
def test_a_job_waits_without_a_try_while_postgres_says_that_it_cannot_write(state):
    make_mails(1, status="dead_lettered")
    job = started()
    with broken("email_notifications", f"RAISE EXCEPTION 'no space' USING ERRCODE = '{state}'"):
        for _ in range(2 * MAX_TRIES):
            with pytest.raises(OperationalError):
                run_batch()
            connection.close()
            job.refresh_from_db()
            assert (job.state, job.tries) == ("running", 1)
            assert "no space" in job.error
            let_pass(job, seconds=11)
    assert job_after(job).state == "done"


@pytest.mark.django_db(transaction=True)
def test_a_statement_that_always_takes_too_long_uses_up_the_tries_of_its_job():
    make_mails(1, status="dead_lettered")
    job = started()
    with broken("email_notifications", "RAISE EXCEPTION 'too slow' USING ERRCODE = '57014'"):
        for tries in range(1, MAX_TRIES):
            assert run_batch()
            job.refresh_from_db()
            assert (job.state, job.tries) == ("running", tries)
            let_pass(job, seconds=700)
        assert run_batch()
    job.refresh_from_db()
    assert job.state == "failed"


def test_the_poll_wakes_a_worker_only_for_a_job_that_nobody_works_at(wakes):
    make_mail(status="dead_lettered")
    job = started()
    wakes.clear()
    tasks.poll_outbox()
    assert wakes == []  # each poll would add a task that wakes another
    let_pass(job, seconds=61)
    tasks.poll_outbox()
    assert len(wakes) == 1
    assert job_after(job).state == "done"
    let_pass(job, seconds=61)
    tasks.poll_outbox()
    assert len(wakes) == 1


def test_a_task_does_one_batch_and_asks_for_the_next(wakes):
    """Drains that wait in the queue come between two batches."""
    make_mails(50, status="dead_lettered")
    job = started()
    wakes.clear()
    for done in (20, 40, 50):
        run_bulk_jobs()
        job.refresh_from_db()
        assert job.done_count == done
    assert (job.state, len(wakes)) == ("done", 3)
    run_bulk_jobs()
    assert len(wakes) == 3


@pytest.mark.parametrize("filter", [{"status": "dead_lettered"}, {"cause": "a" * 16}])
def test_a_batch_of_many_dead_letters_reads_an_index(filter, filled):
    rows = RESEND.rows(filter, dt.datetime.now(dt.UTC)).filter(id__gt=uuid.UUID(int=0))
    with statements(at_most=1) as asked:
        list(rows.order_by("id")[:500])
    assert plan_of(asked[0]).visited <= DEAD
