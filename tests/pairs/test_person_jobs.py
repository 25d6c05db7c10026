"""The export and the erasure of a person as jobs: kills, failovers, pauses, restores, and each other."""

from __future__ import annotations

import datetime as dt
import gzip
import io
import json
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.db import IntegrityError, OperationalError, connections
from django.db.models.functions import Now

from notifications.management.commands import drain_outbox
from orders.privacy import jobs
from outbox.models import jobs as job_times
from tests.kit import warm
from tests.kit.jobs import run_jobs
from tests.kit.mails import make_mail
from tests.kit.months import dsn
from tests.kit.orders import make_order
from tests.kit.words import (
    ERASED_ADDRESS,
    BulkJob,
    EmailNotification,
    Erasure,
    Order,
    Pause,
    address_hash,
    bulk,
    drain,
    erasure,
    exclusive_lock,
    person_export,
    tasks,
)
from tests.ops.test_after_restore import after_restore, line, restore_to_now
from tests.rules.retention.test_crashes import dying_environment
from tests.rules.retention.test_privacy import grep

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"]),
    pytest.mark.usefixtures("archive_folder"),
]
ANN = "ann@example.com"


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch):
    monkeypatch.setattr(bulk.waker, "wake", lambda: None)
    monkeypatch.setattr(job_times, "RETRY_BASE", 0.0)
    monkeypatch.setattr(erasure, "CHUNK", 10)


@pytest.fixture
def ann() -> None:
    """Give a person 25 orders with an e-mail each."""
    for _ in range(25):
        order = make_order(email=ANN, name="Ann", status="completed")
        make_mail(order_id=order.id, recipient_email=ANN, status="sent")


def fresh(job: BulkJob) -> BulkJob:
    return BulkJob.objects.get(id=job.id)


def hook(monkeypatch, module: Any, name: str, after: Any) -> None:
    """Call `after` when the function has returned."""
    real = getattr(module, name)

    def hooked(*args: Any, **options: Any) -> Any:
        result = real(*args, **options)
        after()
        return result

    monkeypatch.setattr(module, name, hooked)


DYING = """
import os, signal, sys
import django
django.setup()
from orders.privacy import erasure, jobs, person_export
from outbox import bulk

erasure.CHUNK = 10
module, name = sys.argv[1].split(".")
module, number = {"erasure": erasure, "jobs": jobs, "person_export": person_export}[module], int(sys.argv[2])
real = getattr(module, name)

def die(*args, **options):
    global number
    result = real(*args, **options)
    number -= 1
    if not number:
        os.kill(os.getpid(), signal.SIGKILL)
    return result

setattr(module, name, die)
bulk.run_batch()
"""


@pytest.mark.parametrize(
    ("step", "number", "orders"),
    [
        ("erasure._record", 1, 25),
        ("erasure.erase_answers", 1, 25),
        ("erasure.erase_texts_with_address", 1, 25),
        ("erasure._erase_live", 2, 5),
        ("erasure._erase_late", 1, 0),
        ("jobs._remove_exports", 1, 0),
    ],
)
@pytest.mark.usefixtures("ann")
def test_an_erasure_whose_worker_is_killed_goes_on_and_leaves_nothing(step, number, orders, tmp_path):
    job = jobs.start_erasure(email=ANN, force=False)
    died = warm.run(
        [sys.executable, "-c", DYING, step, str(number)], environment=dying_environment(tmp_path), timeout=60
    )
    assert died.returncode == -signal.SIGKILL
    left = Order.objects.filter(email=ANN).count()
    assert left == orders
    assert (fresh(job).state, fresh(job).address) == ("running", ANN)
    run_jobs()
    assert (fresh(job).state, fresh(job).address, grep(ANN)) == ("done", "", [])
    assert Erasure.objects.get().finished_at


@pytest.mark.usefixtures("ann")
def test_an_export_whose_worker_is_killed_is_made_again_and_counts_each_row_once(tmp_path):
    job = jobs.start_export(email=ANN)
    died = warm.run(
        [sys.executable, "-c", DYING, "person_export.export_answers", "1"],
        environment=dying_environment(tmp_path),
        timeout=60,
    )
    assert died.returncode == -signal.SIGKILL and fresh(job).done_count == 50
    run_jobs()
    assert (fresh(job).state, fresh(job).done_count) == ("done", 50)
    document = json.loads(gzip.decompress(fresh(job).result or b""))
    assert len(document["orders"]) == len(document["email_notifications"]) == 25


def in_threads(*started: BulkJob) -> None:
    def run(job: BulkJob) -> None:
        try:
            bulk.run_until_ended(job=job, report=lambda step, **_: None)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(started)) as pool:
        for done in [pool.submit(run, job) for job in started]:
            done.result(60)


@pytest.mark.usefixtures("ann")
def test_two_erasures_of_one_person_at_once_run_one_after_the_other():
    first, second = (jobs.start_erasure(email=ANN, force=True) for _ in range(2))
    in_threads(first, second)
    assert sorted([fresh(first).done_count, fresh(second).done_count]) == [0, 50]
    assert {fresh(one).state for one in (first, second)} == {"done"} and grep(ANN) == []
    assert Erasure.objects.get().counts["orders"] == 25


def test_two_workers_do_one_job_once(monkeypatch):
    make_order(email=ANN, status="completed")
    job = jobs.start_erasure(email=ANN, force=False)
    hook(monkeypatch, erasure, "_record", lambda: pool.submit(second).result(20))

    def second() -> None:
        assert bulk.run_batch()
        connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        assert bulk.run_batch()
    assert (fresh(job).state, fresh(job).done_count) == ("done", 1)


@pytest.mark.usefixtures("ann")
def test_an_erasure_during_an_export_waits_and_then_removes_its_result(monkeypatch):
    export, erase = jobs.start_export(email=ANN), jobs.start_erasure(email=ANN, force=False)
    has_read, waits = threading.Event(), threading.Event()

    def wait() -> None:
        has_read.set()
        assert waits.wait(20)

    hook(monkeypatch, person_export, "export_answers", wait)
    with ThreadPoolExecutor(1) as pool:
        exporting = pool.submit(in_threads, export)
        assert has_read.wait(20)
        assert bulk.run_batch()  # the erasure's: another job runs
        assert fresh(erase).state == "running" and Order.objects.filter(email=ANN).count() == 25
        waits.set()
        exporting.result(60)
    assert fresh(export).result is not None
    run_jobs()
    assert (fresh(erase).state, fresh(export).result, grep(ANN)) == ("done", None, [])


@pytest.mark.usefixtures("ann")
def test_an_export_that_waits_during_an_erasure_is_stopped_by_it():
    erase = jobs.start_erasure(email=ANN, force=False)
    export = jobs.start_export(email=ANN)
    assert bulk.run_batch()
    assert (fresh(erase).state, fresh(export).state) == ("done", "stopped")
    assert (fresh(export).error, fresh(export).address) == ("the person was erased", "")


def kill_sessions() -> None:
    """End the test's sessions, as a failover does."""
    with psycopg.connect(dsn(), autocommit=True) as admin:
        for alias in ("default", "direct"):
            pid = connections[alias].connection.info.backend_pid
            admin.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


@pytest.mark.parametrize("run", ["erasure", "export"])
@pytest.mark.usefixtures("ann")
def test_a_failover_in_the_middle_costs_a_try_and_nothing_is_left(monkeypatch, run):
    job = jobs.start_erasure(email=ANN, force=False) if run == "erasure" else jobs.start_export(email=ANN)
    failovers = iter([kill_sessions])
    place = (erasure, "_erase_live") if run == "erasure" else (person_export, "table_rows")
    hook(monkeypatch, *place, lambda: next(failovers, lambda: None)())
    with pytest.raises(OperationalError):
        bulk.run_batch()
    connections.close_all()
    run_jobs()
    assert fresh(job).state == "done" and fresh(job).address == ""
    if run == "erasure":
        assert grep(ANN) == []


def test_an_erasure_waits_for_a_rollover_and_says_so():
    order = make_order(email=ANN, status="completed")
    job = jobs.start_erasure(email=ANN, force=False)
    with exclusive_lock(model=EmailNotification):
        for _ in range(2 * job_times.MAX_TRIES):  # waiting costs no try
            assert bulk.run_batch()
    assert fresh(job).state == "running" and "another run changes" in fresh(job).error
    order.refresh_from_db()
    assert order.email == ANN
    run_jobs()
    assert (fresh(job).state, fresh(job).error, grep(ANN)) == ("done", "", [])


def test_an_erasure_goes_on_while_everything_is_paused():
    make_order(email=ANN, status="completed")
    Pause.objects.pause(parts=["delivery", "relay", "consumers"], reason="", username="x")
    job = jobs.start_erasure(email=ANN, force=False)
    run_jobs()
    assert fresh(job).state == "done" and grep(ANN) == []


def test_a_restored_erasure_waits_for_the_logs_and_then_goes_on(tmp_path):
    make_order(email=ANN, status="completed")
    job, failed = (jobs.start_erasure(email=ANN, force=False) for _ in range(2))
    BulkJob.objects.fail(id=failed.id, error="a defect")
    restore_to_now()
    run_jobs()
    assert set(grep(ANN)) == {"bulk_jobs", "orders"}
    log = tmp_path / "a.log"
    log.write_text("")
    after_restore(log)
    run_jobs()
    assert fresh(job).state == "done" and not Order.objects.filter(email=ANN).exists()
    assert bulk.restart_job(id=failed.id)
    run_jobs()
    assert fresh(failed).state == "done" and grep(ANN) == []


def test_nobody_but_a_worker_or_the_command_runs_one():
    """A drain in a loop sends e-mails, and an erasure would hold them up for minutes."""
    job = jobs.start_export(email=ANN)
    drain_outbox._work(threading.Event(), drain.poll)
    assert (fresh(job).tries, fresh(job).state) == (0, "running")


class TestTheAddress:
    @pytest.mark.parametrize("state", ["done", "stopped"])
    def test_cannot_stay_in_a_job_that_has_ended(self, state):
        job = jobs.start_export(email=ANN)
        with pytest.raises(IntegrityError, match="bulk_jobs_ended_has_no_address"):
            BulkJob.objects.filter(id=job.id).update(state=state, finished_at=Now())

    def test_is_in_no_log_and_no_error_also_of_a_try_that_fails(self, monkeypatch, caplog):
        order = make_order(email=ANN, status="completed")
        job = jobs.start_erasure(email=ANN, force=False)

        def fail(**_: Any) -> None:
            raise ValueError(f"no row of {ANN}")

        with monkeypatch.context() as patched:
            patched.setattr(erasure, "erase_answers", fail)
            for _ in range(job_times.MAX_TRIES):
                assert bulk.run_batch()
        assert (fresh(job).state, fresh(job).address) == ("failed", ANN)
        assert fresh(job).error == f"ValueError: no row of {ERASED_ADDRESS}"
        assert bulk.restart_job(id=job.id)
        run_jobs()
        assert fresh(job).state == "done" and grep(ANN) == [] and order.id
        assert "ann@" not in "".join(str(line.msg) for line in caplog.records)
        assert any(address_hash(ANN) in str(line.msg) for line in caplog.records)


class TestTheUser:
    def test_whose_permission_is_taken_away_stops_the_job(self):
        make_order(email=ANN, status="completed")
        user = User.objects.create_user("op", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename="erase_person"))
        job = jobs.start_erasure(email=ANN, force=False, user=user)
        user.user_permissions.clear()
        run_jobs()
        assert (fresh(job).state, fresh(job).address) == ("stopped", "")
        assert fresh(job).error.endswith("has no permission orders.erase_person any more")
        assert Order.objects.filter(email=ANN).exists()

    @pytest.mark.usefixtures("ann")
    def test_may_stop_it_between_two_steps(self, monkeypatch):
        job = jobs.start_erasure(email=ANN, force=False)
        hook(monkeypatch, erasure, "_erase_live", lambda: BulkJob.objects.stop(id=job.id))
        run_jobs()
        assert (fresh(job).state, Order.objects.filter(email=ANN).count()) == ("stopped", 15)


class TestAResult:
    def test_is_removed_after_a_day_by_the_poll(self):
        job, young = jobs.start_export(email=ANN), jobs.start_export(email="bob@example.com")
        run_jobs()
        BulkJob.objects.filter(id=job.id).update(finished_at=Now() - dt.timedelta(hours=24))
        assert not BulkJob.objects.with_result().filter(id=job.id).exists()
        tasks.poll_outbox()
        assert (fresh(job).result, fresh(young).result is None) == (None, False)

    def test_of_the_command_is_printed_and_not_kept(self, capsys):
        make_order(email=ANN, status="completed")
        call_command("privacy", "export", "--email", ANN)
        assert len(json.loads(capsys.readouterr().out)["orders"]) == 1
        assert BulkJob.objects.get().result is None and BulkJob.objects.get().username == ""


class TestTheCommand:
    def test_waits_for_a_worker_that_does_the_job(self, monkeypatch, capsys):
        make_order(email=ANN, status="completed")
        start = jobs.start_erasure

        def start_and_run(**options: Any) -> BulkJob:
            job: BulkJob = start(**options)
            run_jobs()
            return job

        monkeypatch.setattr(jobs, "start_erasure", start_and_run)
        call_command("privacy", "erase", "--email", ANN)
        assert json.loads(capsys.readouterr().out)["changed"] == 1

    def test_prints_its_progress_without_the_address_and_fails_if_somebody_stops_the_job(self, monkeypatch):
        make_order(email=ANN, status="completed")
        hook(monkeypatch, erasure, "_erase_live", lambda: BulkJob.objects.stop(id=BulkJob.objects.get().id))
        progress = io.StringIO()

        with pytest.raises(CommandError, match="The job was stopped") as caught:
            call_command("privacy", "erase", "--email", ANN, stderr=progress)
        assert caught.value.returncode == 1
        assert "recorded" in progress.getvalue() and ANN not in progress.getvalue()

    def test_that_is_killed_leaves_the_job_to_a_worker(self, monkeypatch):
        make_order(email=ANN, status="completed")
        job = jobs.start_erasure(email=ANN, force=False)
        BulkJob.objects.filter(id=job.id).update(tries=1, updated_at=Now() - dt.timedelta(minutes=2))
        woken: list[bool] = []
        monkeypatch.setattr(bulk.waker, "wake", lambda: woken.append(True))
        bulk.wake_for_unfinished()
        run_jobs()
        assert woken and fresh(job).state == "done"


def test_an_erasure_that_had_only_started_when_the_database_lost_it_is_listed(tmp_path):
    restore_to_now()
    log = tmp_path / "a.log"
    log.write_text(line("erasure started", address_hash=address_hash(ANN), job="x"))
    lost, _ = after_restore(log)
    assert [(one["kind"], one["id"]) for one in lost] == [("erasure", address_hash(ANN))]
