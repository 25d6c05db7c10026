"""The export and the erasure of a person as jobs: the address, the user, the result, the command."""

from __future__ import annotations

import datetime as dt
import io
import json
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.core.management import CommandError, call_command
from django.db import IntegrityError
from django.db.models.functions import Now

from runtime.audit import Actor
from tests.kit.jobs import job_after, let_pass, run_jobs
from tests.kit.orders import make_order
from tests.kit.people import grep, make_user
from tests.kit.words import (
    ERASED_ADDRESS,
    BulkJob,
    Order,
    address_hash,
    restart_job,
    run_until_ended,
    tasks,
    wake_for_unfinished,
)
from tests.kit.words import person_jobs as jobs

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"]),
    pytest.mark.usefixtures("archive_folder"),
]
ANN = "ann@example.com"


@pytest.fixture
def order() -> Order:
    return make_order(email=ANN, name="Ann", status="completed")


def erased(order: Order) -> bool:
    order.refresh_from_db()
    return order.email == ERASED_ADDRESS


def test_nobody_but_a_worker_or_the_command_runs_one():
    """A drain in a loop sends e-mails, and an erasure would hold them up for minutes."""
    job = jobs.start_export(email=ANN, by=Actor("x"))
    call_command("drain_outbox")
    job.refresh_from_db()
    assert (job.tries, job.state) == (0, "running")


class TestTheAddress:
    @pytest.mark.parametrize("state", ["done", "stopped"])
    def test_cannot_stay_in_a_job_that_has_ended(self, state):
        job = jobs.start_export(email=ANN, by=Actor("x"))
        with pytest.raises(IntegrityError, match="bulk_jobs_ended_has_no_address"):
            BulkJob.objects.filter(id=job.id).update(state=state, finished_at=Now())

    def test_is_in_no_log_and_no_error_also_of_a_try_that_fails(self, order, fast, caplog):
        fast.jobs()
        job = jobs.start_erasure(email=ANN, force=False, by=Actor("x"))

        def fail(step: str, **_: Any) -> None:
            if step != "waiting":
                raise ValueError(f"no row of {ANN}")

        run_until_ended(job=job, report=fail)
        job.refresh_from_db()
        assert (job.state, job.address) == ("failed", ANN)
        assert job.error == f"ValueError: no row of {ERASED_ADDRESS}"
        assert restart_job(id=job.id)
        assert job_after(job).state == "done" and erased(order) and grep(ANN) == []
        assert "ann@" not in "".join(str(line.msg) for line in caplog.records)
        assert any(address_hash(ANN) in str(line.msg) for line in caplog.records)


class TestTheUser:
    def test_whose_permission_is_taken_away_stops_the_job(self, order):
        user = make_user("op")
        user.user_permissions.set(Permission.objects.filter(codename="erase_person"))
        job = jobs.start_erasure(email=ANN, force=False, by=Actor("x"), user=user)
        user.user_permissions.clear()
        job = job_after(job)
        assert (job.state, job.address) == ("stopped", "") and not erased(order)
        assert job.error.endswith("has no permission orders.erase_person any more")

    def test_may_stop_it_between_two_steps(self, order):
        job = jobs.start_erasure(email=ANN, force=False, by=Actor("x"))

        def stop_after_the_first_step(step: str, **facts: Any) -> None:
            BulkJob.objects.stop(id=job.id)

        run_until_ended(job=job, report=stop_after_the_first_step)
        assert job.state == "stopped" and not erased(order)


class TestAResult:
    def test_is_removed_after_a_day_by_the_poll(self):
        old, young = (
            jobs.start_export(email=ANN, by=Actor("x")),
            jobs.start_export(email="bob@example.com", by=Actor("x")),
        )
        run_jobs()
        BulkJob.objects.filter(id=old.id).update(finished_at=Now() - dt.timedelta(hours=24))
        assert not BulkJob.objects.with_result().filter(id=old.id).exists()
        tasks.poll_outbox()
        assert BulkJob.objects.get(id=old.id).result is None
        assert BulkJob.objects.get(id=young.id).result is not None

    def test_of_the_command_is_printed_and_not_kept(self, order, capsys):
        call_command("privacy", "export", "--email", ANN)
        assert len(json.loads(capsys.readouterr().out)["orders"]) == 1
        job = BulkJob.objects.get()
        assert (job.result, job.username) == (None, "")


class TestTheCommand:
    def test_waits_for_a_worker_that_does_the_job(self, order, monkeypatch, capsys):
        start = jobs.start_erasure

        def start_and_run(**options: Any) -> BulkJob:
            job: BulkJob = start(**options)
            run_jobs()
            return job

        monkeypatch.setattr(jobs, "start_erasure", start_and_run)
        call_command("privacy", "erase", "--email", ANN)
        assert json.loads(capsys.readouterr().out)["changed"] == 1

    def test_prints_its_progress_without_the_address_and_fails_if_somebody_stops_the_job(self, order):
        class Progress(io.StringIO):
            def write(self, text: str) -> int:
                BulkJob.objects.stop(id=BulkJob.objects.get().id)
                return super().write(text)

        progress = Progress()
        with pytest.raises(CommandError, match="The job was stopped") as caught:
            call_command("privacy", "erase", "--email", ANN, stderr=progress)
        assert caught.value.returncode == 1 and not erased(order)
        assert "recorded" in progress.getvalue() and ANN not in progress.getvalue()

    def test_that_is_killed_leaves_the_job_to_a_worker(self, order, wakes):
        job = jobs.start_erasure(email=ANN, force=False, by=Actor("x"))
        BulkJob.objects.filter(id=job.id).update(tries=1)
        let_pass(job, seconds=120)
        wake_for_unfinished()
        assert wakes and job_after(job).state == "done" and erased(order)
