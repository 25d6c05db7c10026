"""Bulk jobs: start one, run its batches, let it fail, and read what it changed."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models.functions import Now
from django.test import Client

from runtime.audit import Actor
from runtime.jobs import run
from tests.kit.acts import acts
from tests.kit.words import ACTIONS, RESEND, BulkJob, job_waker, run_batch, start_job

LIST = "/admin/notifications/emailnotification/"
Change = TypeVar("Change", bound=Callable[[Any], Any])


class Killed(BaseException):
    """The end of the worker's process."""


@contextmanager
def small_batches(*, rows: int) -> Iterator[list[str]]:
    """Let a batch have so many rows, and wake no worker. Yield a list with one entry for each wake-up."""
    wakes: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "CHUNK", rows)
        patch.setattr(job_waker, "wake", lambda: wakes.append("wake"))
        yield wakes


def started(
    action: str = RESEND.name, *, user: User | None = None, reason: str = "", **filter: str
) -> BulkJob:
    """Start a job, by default the superuser ann's on all dead letters."""
    if user is None:
        user, _ = User.objects.get_or_create(username="ann", is_staff=True, is_superuser=True)
    return start_job(
        action=action, filter=filter or {"status": "dead_lettered"}, user=user, by=Actor("x"), reason=reason
    )


def run_jobs() -> None:
    """Run batches until none is due, as workers do."""
    while run_batch():
        pass


def let_pass(job: BulkJob, *, seconds: float) -> None:
    """Let so much time pass since the job's last try."""
    BulkJob.objects.filter(id=job.id).update(updated_at=Now() - dt.timedelta(seconds=seconds))


def job_after(job: BulkJob, *, seconds: float = 0) -> BulkJob:
    """Let time pass since the job's last try, if given. Run what is due, and return the job as it then is."""
    if seconds:
        let_pass(job, seconds=seconds)
    run_jobs()
    return BulkJob.objects.get(id=job.id)


def logged() -> Counter[str]:
    """Count the audit rows of each changed row."""
    return Counter(str(id) for id in acts().values_list("subject_id", flat=True))


@contextmanager
def resending(change: Change) -> Iterator[Change]:
    """Let jobs that resend call `change(ids)` for each batch. Yield `change`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ACTIONS, RESEND.name, dataclasses.replace(RESEND, change=change))
        yield change


@contextmanager
def killed_at_the_end_of(batch: int) -> Iterator[None]:
    """Kill the process before the last statement of a batch, which writes the job's position."""
    ends = 0

    def count(execute: Any, sql: str, *rest: Any) -> Any:
        nonlocal ends
        if sql.startswith('UPDATE "bulk_jobs"') and '"position" =' in sql:
            ends += 1
            if ends == batch:
                raise Killed
        return execute(sql, *rest)

    with connection.execute_wrapper(count), pytest.raises(Killed):
        yield


def act(client: Client, action: str, ids: Iterable[object], **fields: str) -> Any:
    """Tick e-mails in the admin's list, confirm the action, run its job, and return the job's page.

    Return the list's answer if it does not ask.
    """
    ticked = {"action": action, "_selected_action": [str(id) for id in ids]}
    asked = client.post(LIST, ticked, follow=True)
    if "hidden" not in asked.context:
        return asked
    answer = dict(asked.context["hidden"]) | {"action": action, "confirmed": "yes"} | fields
    started = client.post(f"{LIST}bulk/", answer)
    run_jobs()
    return client.get(started["Location"])
