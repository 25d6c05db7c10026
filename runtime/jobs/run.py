"""Do background jobs, a batch at a time.

A batch is one transaction: it locks the job's row, changes up to `BATCH` rows, records each change, and
moves the job's position. If a process is killed, the next one continues after the last whole batch, and no
two processes do the same batch.

Before each batch, a process counts a try in a commit of its own. A batch that always fails, or always kills
its process, gets at most `MAX_TRIES` tries.

The export or erasure of a person is one call, which may be repeated after a kill. It counts as one batch.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence

import structlog
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import DatabaseError, InterfaceError, OperationalError, connection, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from runtime.audit import Actor, command_actor, record
from runtime.database.away import is_away
from runtime.database.transactions import after_commit
from runtime.jobs import work
from runtime.jobs.actions import (
    ACTIONS,
    BatchResult,
    BulkAction,
    JobRefused,
    PersonAction,
    Report,
    Stopped,
    Waiting,
    rows_of,
)
from runtime.jobs.start import waker
from runtime.models import AuditRow, BulkJob
from runtime.models.bindings import binding_of
from runtime.models.jobs import MAX_TRIES
from runtime.personal_data import without_addresses
from runtime.telemetry import context as work_context

log = structlog.get_logger(__name__)

#: Rows in one transaction.
CHUNK = 500
#: The job's page lists so many of the rows that were left alone for a reason.
KEPT_REFUSED = 50

#: After so long without a batch, a job with an unknown action fails. A process of a newer release may know
#: the action, and its batches and tries keep `updated_at` younger.
UNKNOWN_FOR = dt.timedelta(hours=1)

#: The fields of a job that a result does not make big.
PROGRESS = ("state", "done_count", "error")


def run_batch(*, persons: bool = True) -> bool:
    """Do one batch of the due job that waited longest. Return False if no job is due.

    Unless `persons`, leave out jobs on a person's data, which may take minutes. An error of the batch is
    logged and recorded in the job: the batch is tried again later, or the job fails. Raise the database's
    error if the connection is lost.
    """
    return _run_one(_due_jobs(persons=persons), _say_nothing)


def run_until_ended(*, job: BulkJob, report: Report) -> None:
    """Do a job in this process, or wait for the process that does it. Also report what the job waits for."""
    said = ""
    while job.state == job.State.RUNNING:
        if not _run_one(_due_jobs().filter(id=job.id), report):
            time.sleep(0.5)
        job.refresh_from_db(fields=PROGRESS)
        if job.error not in ("", said):
            report("waiting", reason=job.error)
        said = job.error


def _say_nothing(step: str, **facts: object) -> None:
    """Report to nobody. The job's row has the progress."""


def _run_one(jobs: QuerySet[BulkJob], report: Report) -> bool:
    job = _begin_try(jobs)
    if job is None:
        return False
    session = connection.connection  # to notice that Django has reconnected before an error is caught
    action = ACTIONS[job.action]
    try:
        with work_context.working_for(work_context.Context(job.correlation_id)):
            if isinstance(action, PersonAction):
                _run_for_person(job, action, report)
            else:
                _work(job.id, action)
    except Exception as error:
        text = without_addresses(f"{type(error).__name__}: {error}")[:1000]
        if is_away(error):
            # A database that cannot be reached leaves this try counted, but then it counts no further one.
            with contextlib.suppress(DatabaseError, InterfaceError):
                BulkJob.objects.postpone(id=job.id, error=text)
            raise
        lost = connection.connection is not session
        if lost and isinstance(error, OperationalError | InterfaceError):
            raise
        log.exception("bulk job failed, to be tried again", job=str(job.id), tries=job.tries)
        if job.tries < MAX_TRIES:
            BulkJob.objects.running().filter(id=job.id).update(error=text, updated_at=Now())
        else:
            _fail(job, text)
    return True


def _due_jobs(*, persons: bool = True) -> QuerySet[BulkJob]:
    """Return due jobs that this release knows, and those that no process has touched for `UNKNOWN_FOR`."""
    unclaimed = Q(updated_at__lte=Now() - UNKNOWN_FOR)
    jobs = BulkJob.objects.due().filter(Q(action__in=list(ACTIONS)) | unclaimed).order_by("updated_at")
    return jobs if persons else jobs.filter(address="")


def _begin_try(jobs: QuerySet[BulkJob]) -> BulkJob | None:
    """Count a try of the next due job. No other process begins one until the job is due again."""
    with transaction.atomic():
        job = jobs.select_for_update(skip_locked=True).first()
        if job is not None and not (reason := _reason_to_fail(job)):
            job.tries += 1
            BulkJob.objects.filter(id=job.id).update(tries=job.tries, updated_at=Now())
            return job
    if job is None:
        return None
    _fail(job, reason)
    return _begin_try(jobs)


def _reason_to_fail(job: BulkJob) -> str:
    """Return why no further try makes sense, or an empty text if one does."""
    if job.action not in ACTIONS:
        return f"No process knew the action {job.action} for an hour."
    if job.tries >= MAX_TRIES:  # only a killed process leaves a job like this
        return f"The process was killed in the last of {job.tries} tries. {job.error}".rstrip()
    return ""


def _fail(job: BulkJob, reason: str) -> None:
    if BulkJob.objects.fail(id=job.id, error=reason):
        after_commit(lambda: log.error("bulk job failed", job=str(job.id), error=reason))


def _run_for_person(job: BulkJob, action: PersonAction, report: Report) -> None:
    def count(step: str, *, rows: int = 0, **facts: object) -> None:
        """Write the progress, which also shows other processes that this one is alive."""
        running = BulkJob.objects.running().filter(id=job.id)
        if not running.update(done_count=F("done_count") + rows, error="", updated_at=Now()):
            raise Stopped
        report(step, rows=rows, **facts)

    try:
        if refused := _why_not_allowed(job):
            raise JobRefused(refused)
        action.run(job, count)
        has_ended = BulkJob.objects.finish(id=job.id)
    except JobRefused as reason:
        has_ended = BulkJob.objects.stop(id=job.id, error=str(reason))
    except Waiting as reason:
        BulkJob.objects.postpone(id=job.id, error=str(reason))
        return
    except Stopped:
        return
    if has_ended:
        job.refresh_from_db(fields=PROGRESS)
        _log_end(job)


def _work(id: uuid.UUID, action: BulkAction) -> None:
    """Do one batch of a running job. The caller has counted a try, and no other process does one."""
    with transaction.atomic():
        # Wait for the lock. A process that searches for a due job may hold it for a moment.
        job = BulkJob.objects.running().filter(id=id).select_for_update().first()
        if job is None:
            return
        refused = _why_not_allowed(job)
        ids = [] if refused else _next_ids(job, action)
        result = action.change(ids) if ids else BatchResult([], {})
        _record(job, result.acts)
        job.done_count += len(result.acts)
        refused_counts = Counter({reason: len(ids) for reason, ids in result.refusals.items()})
        job.refused_count += refused_counts.total()
        job.refusals = dict(Counter(job.refusals) + refused_counts)
        job.refused_ids = _first_refused(job.refused_ids or {}, result)
        job.position = ids[-1] if ids else job.position
        state = job.State.RUNNING
        if len(ids) < CHUNK:
            state = job.State.STOPPED if refused else job.State.DONE
        BulkJob.objects.filter(id=id).update(
            state=state,
            finished_at=None if state == job.State.RUNNING else Now(),
            position=job.position,
            done_count=job.done_count,
            refused_count=job.refused_count,
            refusals=job.refusals,
            refused_ids=job.refused_ids,
            tries=0,
            error=refused,
            updated_at=Now(),
        )
    if state != job.State.RUNNING:
        job.state, job.error = state, refused
        _log_end(job)


def _first_refused(before: Mapping[str, Sequence[str]], result: BatchResult) -> dict[str, list[str]]:
    """Return the ids of the first rows that the job left alone for each reason."""
    first = {reason: list(ids) for reason, ids in before.items()}
    for reason, ids in result.refusals.items():
        kept = first.setdefault(reason, [])
        kept += map(str, ids[: KEPT_REFUSED - len(kept)])
    return first


def _log_end(job: BulkJob) -> None:
    after_commit(
        lambda: log.info(
            "bulk job ended",
            job=str(job.id),
            state=str(job.state),
            done=job.done_count,
            refused=job.refused_count,
            error=job.error,
        )
    )


def _why_not_allowed(job: BulkJob) -> str:
    """Return why the job's owner may not continue it, or an empty text."""
    if not job.username:
        return ""  # a command's job
    users = get_user_model()._default_manager
    user = users.filter(pk=job.user_id).first() if job.user_id else None
    permission = ACTIONS[job.action].permission
    if user is None:
        return "its user was deleted"
    if not user.is_active:
        return f"its user {job.username} is not active any more"
    if not user.has_perm(permission):
        return f"its user {job.username} has no permission {permission} any more"
    if not (binding := binding_of(user)).covers(job.binding):
        return f"its user {job.username} is bound to {binding} now, and the job to {job.binding}"
    return ""


def _next_ids(job: BulkJob, action: BulkAction) -> list[uuid.UUID]:
    """Return the ids of the next batch. Ids up to the job's position never come again."""
    if job.last_id is None:
        return []
    after = Q() if job.position is None else Q(id__gt=job.position)
    rows = job.binding.only(rows_of(action, job.filter, started_at=job.created_at))
    rows = rows.filter(after, id__lte=job.last_id)
    return list(rows.order_by("id").values_list("id", flat=True)[:CHUNK])


def _record(job: BulkJob, acts: Sequence[AuditRow]) -> None:
    """Record each change as an act of the job's user, from where the user started the job."""
    if not acts:
        return
    for act in acts:
        act.act, act.reason = f"{act.act} (job {job.id})", job.reason
    start = AuditRow.objects.filter(subject_id=str(job.id), kind=AuditRow.Kind.JOB).order_by("id").first()
    by = Actor(job.username, start.address if start else "") if job.username else command_actor()
    record(*acts, by=by)


def wake_for_unfinished() -> None:
    """Wake workers for due jobs that had no batch since the last poll, and for other work.

    A job in progress needs no wake-up: each of its tasks enqueues the next while rows are left. Another
    wake-up at each poll would add tasks until they occupy all of the worker's threads.
    """
    neglected = dt.timedelta(seconds=settings.POLL_INTERVAL)
    if _due_jobs().filter(updated_at__lte=Now() - neglected).exists():
        waker.wake()
    if work.is_waiting():
        work.waker.wake()
