"""Export and erase a person's data in background jobs."""

from __future__ import annotations

import contextlib
import gzip
import json
import uuid
from collections.abc import Iterator

import structlog
from django.contrib.auth.models import AbstractUser
from django.core.serializers.json import DjangoJSONEncoder

from orders.privacy.erasure import NotFinished, StillSending, erase_person
from orders.privacy.export import export_person
from orders.privacy.persons import DIRECT, check_address
from retention.partitions.locks import AlreadyRunning, exclusive_lock
from runtime.audit import Actor
from runtime.database.postgres.connection import PoolerFound
from runtime.database.transactions import after_commit
from runtime.jobs.actions import JobRefused, Report, Waiting
from runtime.jobs.start import start_for_person
from runtime.models import AuditRow, BulkJob

log = structlog.get_logger(__name__)

#: The names of the actions, and of the permissions that they need.
EXPORT, ERASE = "orders.export_person", "orders.erase_person"


def start_export(
    *, email: str, by: Actor, user: AbstractUser | None = None, order_id: uuid.UUID | None = None
) -> BulkJob:
    """Start a job whose result is all that the user's shops have of a person. Raise `NoPerson`."""
    return start_for_person(
        action=EXPORT,
        kind=AuditRow.Kind.EXPORT,
        address=check_address(email),
        by=by,
        user=user,
        order_id=order_id,
    )


def start_erasure(
    *,
    email: str,
    force: bool,
    by: Actor,
    user: AbstractUser | None = None,
    order_id: uuid.UUID | None = None,
) -> BulkJob:
    """Start a job that erases a person. Raise `NoPerson`.

    Unless `force`, the job refuses while an order or e-mail of the person is not finished.
    """
    options = {"force": "on"} if force else {}
    job = start_for_person(
        action=ERASE,
        kind=AuditRow.Kind.ERASURE,
        address=check_address(email),
        by=by,
        user=user,
        order_id=order_id,
        **options,
    )
    # `after_restore` lists the erasures that a restored database does not know.
    after_commit(lambda: log.info("erasure started", address_hash=job.filter["person"], job=str(job.id)))
    return job


def run_export(job: BulkJob, report: Report) -> None:
    """Store the export as the result of its job."""
    with _alone():
        BulkJob.objects.filter(id=job.id).update(done_count=0)  # of a try that was killed
        document = export_person(email=job.address, report=report, shops=job.binding)
        text = json.dumps(document, cls=DjangoJSONEncoder, indent=2, ensure_ascii=False)
        # If the session has lost the lock, the person may have been erased since. Store nothing.
        running = BulkJob.objects.using(DIRECT).running().filter(id=job.id)
        running.update(result=gzip.compress(text.encode()))


def run_erasure(job: BulkJob, report: Report) -> None:
    """Erase the person of a job, and the person's exports."""
    with _alone():
        try:
            erase_person(email=job.address, report=report, force=job.filter.get("force") == "on")
        except NotFinished as error:
            raise JobRefused(str(error)) from error
        except (AlreadyRunning, StillSending) as error:
            raise Waiting(str(error)) from error
        _remove_exports(job)


def _remove_exports(job: BulkJob) -> None:
    """Remove the results of the person's exports, and stop exports that have not ended."""
    exports = BulkJob.objects.filter(action=EXPORT, filter__person=job.filter["person"])
    for id in exports.values_list("id", flat=True):
        BulkJob.objects.stop(id=id, error="the person was erased")
    exports.exclude(result=None).update(result=None)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let one job on a person run at a time. An export must not store what an erasure erases meanwhile.

    Raise `Waiting` without a reason if another process has the lock, perhaps for the same job. Raise
    `JobRefused` if a pooler shares the session of the lock.
    """
    with contextlib.ExitStack() as locks:
        try:
            locks.enter_context(exclusive_lock(model=BulkJob, using=DIRECT))
        except AlreadyRunning as error:
            raise Waiting from error
        except PoolerFound as error:
            raise JobRefused(str(error)) from error
        yield
