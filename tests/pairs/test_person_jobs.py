"""The export and the erasure of a person as jobs: kills, failovers, pauses, restores, and each other."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from django.db import OperationalError, connections

from runtime.audit import Actor
from tests.kit.deaths import run_until_killed
from tests.kit.jobs import job_after, run_jobs
from tests.kit.mails import make_mail
from tests.kit.months import dsn
from tests.kit.orders import make_order
from tests.kit.people import grep
from tests.kit.restored import after_restore, line, restore_to_now
from tests.kit.waiting import PATIENCE
from tests.kit.words import (
    BulkJob,
    EmailNotification,
    Erasure,
    Order,
    address_hash,
    erasure,
    exclusive_lock,
    job_times,
    pauses,
    restart_job,
    run_batch,
    run_until_ended,
)
from tests.kit.words import person_jobs as jobs

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"]),
    pytest.mark.usefixtures("archive_folder"),
]
ANN = "ann@example.com"


@pytest.fixture(autouse=True)
def _no_waits(fast, monkeypatch):
    fast.jobs()
    monkeypatch.setattr(erasure, "CHUNK", 10)


@pytest.fixture
def ann() -> None:
    """Give a person 25 orders with an e-mail each."""
    for _ in range(25):
        order = make_order(email=ANN, name="Ann", status="completed")
        make_mail(order_id=order.id, recipient_email=ANN, status="sent")


def start(kind: str) -> BulkJob:
    return (
        jobs.start_export(email=ANN, by=Actor("x"))
        if kind == "export"
        else jobs.start_erasure(email=ANN, force=False, by=Actor("x"))
    )


def fresh(job: BulkJob) -> BulkJob:
    return BulkJob.objects.get(id=job.id)


def hers() -> int:
    return Order.objects.filter(email=ANN).count()


def run(job: BulkJob, *, after: Callable[[str], object] = lambda step: None) -> None:
    """Do a job in this thread. Call `after(step)` after each of its steps."""

    def report(step: str, **_: object) -> None:
        after(step)

    try:
        run_until_ended(job=job, report=report)
    finally:
        connections.close_all()


#: The steps of the erasure of `ann`.
STEPS = ("recorded", "texts", "10 orders", "20 orders", "25 orders", "late texts")
DYING = """
import os, signal, sys
import django
django.setup()
from tests.kit.words import BulkJob, erasure, run_until_ended

erasure.CHUNK = 10
steps = int(sys.argv[1])

def report(step, **facts):
    global steps
    steps -= 1
    if not steps:
        os.kill(os.getpid(), signal.SIGKILL)

run_until_ended(job=BulkJob.objects.get(), report=report)
"""


@pytest.mark.parametrize(("step", "left"), [("recorded", 25), ("20 orders", 5), ("late texts", 0)])
@pytest.mark.usefixtures("ann")
def test_an_erasure_whose_worker_is_killed_goes_on_and_leaves_nothing(step, left, tmp_path):
    job = start("erasure")
    run_until_killed(DYING, str(STEPS.index(step) + 1), tmp_path=tmp_path)
    assert hers() == left
    assert (fresh(job).state, fresh(job).address) == ("running", ANN)
    job = job_after(job)
    assert (job.state, job.address, grep(ANN)) == ("done", "", [])
    assert Erasure.objects.get().finished_at


@pytest.mark.usefixtures("ann")
def test_an_export_whose_worker_is_killed_is_made_again_and_counts_each_row_once(tmp_path):
    job = start("export")
    run_until_killed(DYING, "3", tmp_path=tmp_path)
    assert fresh(job).done_count == 50
    job = job_after(job)
    assert (job.state, job.done_count) == ("done", 50)
    document = json.loads(gzip.decompress(job.result or b""))
    assert len(document["orders"]) == len(document["email_notifications"]) == 25


@pytest.mark.usefixtures("ann")
def test_two_erasures_of_one_person_at_once_run_one_after_the_other():
    both = start("erasure"), start("erasure")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, both))
    assert sorted(fresh(job).done_count for job in both) == [0, 50]
    assert {fresh(job).state for job in both} == {"done"} and grep(ANN) == []
    assert Erasure.objects.get().counts["orders"] == 25


@pytest.mark.usefixtures("ann")
def test_two_workers_do_one_job_once():
    job, others = start("erasure"), []

    def second() -> None:
        others.append(run_batch())
        connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        run(job, after=lambda step: others or pool.submit(second).result(PATIENCE))
    assert others == [True]
    assert (fresh(job).state, fresh(job).done_count) == ("done", 50)


@pytest.mark.usefixtures("ann")
def test_an_erasure_during_an_export_waits_and_then_removes_its_result():
    export, erase = start("export"), start("erasure")
    has_read, waits = threading.Event(), threading.Event()

    def wait(step: str) -> None:
        has_read.set()
        assert waits.wait(PATIENCE)

    with ThreadPoolExecutor(1) as pool:
        exporting = pool.submit(run, export, after=wait)
        assert has_read.wait(PATIENCE)
        assert run_batch()  # the erasure's, because the export's is counted as a try
        assert fresh(erase).state == "running" and hers() == 25
        waits.set()
        exporting.result(PATIENCE)
    assert fresh(export).result is not None
    erase = job_after(erase)
    assert (erase.state, fresh(export).result, grep(ANN)) == ("done", None, [])


@pytest.mark.usefixtures("ann")
def test_an_export_that_waits_during_an_erasure_is_stopped_by_it():
    erase, export = start("erasure"), start("export")
    assert run_batch()
    assert (fresh(erase).state, fresh(export).state) == ("done", "stopped")
    assert (fresh(export).error, fresh(export).address) == ("the person was erased", "")


def kill_sessions() -> None:
    """End the test's sessions, as a failover does."""
    with psycopg.connect(dsn(), autocommit=True) as admin:
        for alias in ("default", "direct"):
            pid = connections[alias].connection.info.backend_pid
            admin.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


@pytest.mark.parametrize("kind", ["erasure", "export"])
@pytest.mark.usefixtures("ann")
def test_a_failover_in_the_middle_costs_a_try_and_nothing_is_left(kind):
    job, steps = start(kind), []

    def fail_over_after_the_second(step: str) -> None:
        steps.append(step)
        if len(steps) == 2:
            kill_sessions()

    with pytest.raises(OperationalError):
        run(job, after=fail_over_after_the_second)
    assert (fresh(job).state, fresh(job).tries, fresh(job).address) == ("running", 1, ANN)
    job = job_after(job)
    assert (job.state, job.address) == ("done", "")
    assert kind == "export" or grep(ANN) == []


def test_an_erasure_waits_for_a_rollover_and_says_so():
    make_order(email=ANN, status="completed")
    job = start("erasure")
    with exclusive_lock(model=EmailNotification):
        for _ in range(2 * job_times.MAX_TRIES):  # waiting costs no try
            assert run_batch()
    assert fresh(job).state == "running" and "another run changes" in fresh(job).error
    assert hers() == 1
    job = job_after(job)
    assert (job.state, job.error, grep(ANN)) == ("done", "", [])


def test_an_erasure_goes_on_while_everything_is_paused():
    make_order(email=ANN, status="completed")
    pauses.pause(parts=["delivery", "relay", "consumers"], reason="", by=Actor("x"))
    assert job_after(start("erasure")).state == "done" and grep(ANN) == []


def test_a_restored_erasure_waits_for_the_logs_and_then_goes_on(tmp_path):
    make_order(email=ANN, status="completed")
    job, failed = start("erasure"), start("erasure")
    BulkJob.objects.fail(id=failed.id, error="a defect")
    restore_to_now()
    run_jobs()
    assert set(grep(ANN)) == {"bulk_jobs", "orders"}
    log = tmp_path / "a.log"
    log.write_text("")
    after_restore(log)
    assert job_after(job).state == "done" and hers() == 0
    assert restart_job(id=failed.id)
    assert job_after(failed).state == "done" and grep(ANN) == []


def test_an_erasure_that_had_only_started_when_the_database_lost_it_is_listed(tmp_path):
    restore_to_now()
    log = tmp_path / "a.log"
    log.write_text(line("erasure started", address_hash=address_hash(ANN), job="x"))
    lost, _ = after_restore(log)
    assert [(change["kind"], change["id"]) for change in lost] == [("erasure", address_hash(ANN))]
