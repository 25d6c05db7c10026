"""Start background jobs, and wake a worker for them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import structlog
from celery import current_app
from django.conf import settings
from django.contrib.auth.models import AbstractUser
from django.db import transaction

from runtime.audit import Actor, record
from runtime.binding import UNBOUND
from runtime.database.transactions import after_commit
from runtime.jobs.actions import ACTIONS, describe, row_action, rows_of
from runtime.models import AuditRow, BulkJob
from runtime.models.bindings import binding_of
from runtime.personal_data import address_hash, refuse_addresses
from runtime.process.waker import Waker
from runtime.telemetry import context as work_context

log = structlog.get_logger(__name__)

#: Counts of a total stop here. For more rows, the progress page shows only how many are done.
COUNT_LIMIT = 100_000

#: The task that does a batch, sent by its name.
RUN_JOBS = "run_bulk_jobs"


def _enqueue() -> None:
    # A wake-up that is older than a poll is of no use. The poll has sent another.
    current_app.send_task(RUN_JOBS, expires=settings.POLL_INTERVAL)


waker = Waker(_enqueue, target="bulk")


def start_job(
    *, action: str, filter: Mapping[str, str], user: AbstractUser, by: Actor, reason: str = ""
) -> BulkJob:
    """Write a job for the rows of `filter` now (`rows_of`), and wake a worker after the commit.

    It visits only rows of the shops to which the user is bound now. Raise `AddressGiven` if the filter or the
    reason has an address.
    """
    refuse_addresses(reason, *filter.values())
    binding = binding_of(user)
    rows = binding.only(rows_of(row_action(name=action), filter))
    with transaction.atomic():
        total = rows.order_by()[: COUNT_LIMIT + 1].count()
        job = BulkJob.objects.create(
            action=action,
            filter=dict(filter),
            last_id=rows.order_by("-id").values_list("id", flat=True).first(),
            total=total if total <= COUNT_LIMIT else None,
            user_id=user.pk,
            username=user.get_username(),
            sources=None if binding.is_unbound else binding.words,
            reason=reason[:200],
            correlation_id=work_context.current().correlation_id,
        )
        transaction.on_commit(waker.wake)
        started = f"Started {action}: {describe(ACTIONS[action], filter)}."
        record(act_on_job(job, kind=AuditRow.Kind.JOB, act=started, reason=job.reason), by=by)
    _log_start(job)
    return job


def act_on_job(
    job: BulkJob, *, kind: AuditRow.Kind, act: str, reason: str = "", order_id: uuid.UUID | None = None
) -> AuditRow:
    """Return the audit row of an act on a job."""
    return AuditRow(
        kind=kind,
        act=act,
        reason=reason,
        order_id=order_id,
        subject_type=job._meta.label_lower,
        subject_id=str(job.id),
        subject=f"background job {job.id}",
    )


def start_for_person(
    *,
    action: str,
    kind: AuditRow.Kind,
    address: str,
    by: Actor,
    user: AbstractUser | None = None,
    order_id: uuid.UUID | None = None,
    **options: str,
) -> BulkJob:
    """Write a job on a person's data, and wake a worker after the commit.

    If there is no `user`, wake nobody: a command does its job itself. `order_id` is the order that the user
    chose. The time that this takes does not depend on the person's rows.
    """
    binding = binding_of(user) if user else UNBOUND
    with transaction.atomic():
        job = BulkJob.objects.create(
            action=action,
            filter={"person": address_hash(address), **options},
            address=address,
            user_id=user.pk if user else None,
            username=user.get_username() if user else "",
            sources=None if binding.is_unbound else binding.words,
            correlation_id=work_context.current().correlation_id,
        )
        codes = {**job.filter, "person": f"hash:{job.filter['person']}"}
        words = [f"Started an {kind.value} of a customer's data:", *(f"{k}={v}" for k, v in codes.items())]
        record(act_on_job(job, kind=kind, act=" ".join(words), order_id=order_id), by=by)
        if user:
            transaction.on_commit(waker.wake)
    _log_start(job)
    return job


def _log_start(job: BulkJob) -> None:
    after_commit(
        lambda: log.info(
            "bulk job started",
            job=str(job.id),
            action=job.action,
            filter=describe(ACTIONS[job.action], job.filter),
            user=job.username,
        )
    )


def restart_job(*, id: uuid.UUID) -> bool:
    """Continue a failed job, and wake a worker after the commit. Return False if it has not failed."""
    restarted = BulkJob.objects.restart(id=id)
    if restarted:
        transaction.on_commit(waker.wake)
        after_commit(lambda: log.info("bulk job restarted", job=str(id)))
    return restarted
