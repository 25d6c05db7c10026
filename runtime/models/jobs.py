"""Background jobs: an action on every row that matched a filter, or on the data of one person."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any, Self

from django.conf import settings
from django.db import models
from django.db.models import Exists, F, OuterRef, Q
from django.db.models.functions import Greatest, Now

from runtime.binding import Binding
from runtime.database.ids import new_id
from runtime.database.purge_rules import PurgeRule
from runtime.models.pauses import Pause
from runtime.process.backoff import NO_JITTER, RetryPolicy

#: A job fails after so many consecutive tries that finished no batch, 21 minutes after the first try.
MAX_TRIES = 8
#: The waits between tries. They have no jitter: one process at a time runs a job.
RETRIES = RetryPolicy(base_seconds=10.0, cap_seconds=640.0, jitter=NO_JITTER)
#: The result of a job is kept for so long after its end.
RESULT_HOURS = 24


class BulkJobQuerySet(models.QuerySet["BulkJob"]):
    """A job runs until it is done, fails or is stopped."""

    def running(self) -> Self:
        return self.filter(state=BulkJob.State.RUNNING)

    def due(self) -> Self:
        """Filter the running jobs whose next batch may begin now.

        Leave out jobs of a restored backup until the logs were read: their rows may have been changed and
        sent after the moment of the restored state.
        """
        ready = Q(tries=0)
        for tries in range(1, MAX_TRIES + 1):
            wait = dt.timedelta(seconds=RETRIES.delay(attempt=tries, chance=1.0))
            ready |= Q(tries=tries, updated_at__lte=Now() - wait)
        unread = Pause.objects.filter(
            restored_to__isnull=False, reconciled_at=None, paused_at__gte=OuterRef("created_at")
        )
        return self.running().filter(ready).exclude(Exists(unread))

    def fail(self, *, id: uuid.UUID, error: str) -> bool:
        """Mark a running job as failed, for a person to restart or stop. Return whether it was running."""
        return bool(self._end(self.running().filter(id=id), BulkJob.State.FAILED, error=error))

    def restart(self, *, id: uuid.UUID) -> bool:
        """Restart a failed job after its last complete batch. Return whether it had failed."""
        failed = self.filter(id=id, state=BulkJob.State.FAILED)
        state = BulkJob.State.RUNNING
        return bool(failed.update(state=state, finished_at=None, tries=0, error="", updated_at=Now()))

    def finish(self, *, id: uuid.UUID) -> bool:
        """Mark a running job as done. Return whether it was running."""
        return bool(self._end(self.running().filter(id=id), BulkJob.State.DONE, address="", error=""))

    def stop(self, *, id: uuid.UUID, error: str = "") -> bool:
        """Stop a running or failed job. Its changes stay. Return whether it was running or had failed.

        If `error` is empty, a failed job keeps its own.
        """
        values = {"error": error} if error else {}
        return bool(self._end(self._open().filter(id=id), BulkJob.State.STOPPED, address="", **values))

    def stop_restored(self, *, until: dt.datetime, error: str) -> int:
        """Stop the running and failed jobs of a restored backup, created by `until`. Return their number.

        Restarting a failed one could resend e-mails that were resent before the restore. A person's export
        and erasure stay: they send nothing, and an erasure must not be lost.
        """
        restored = self._open().filter(created_at__lte=until, address="")
        return self._end(restored, BulkJob.State.STOPPED, error=error)

    def postpone(self, *, id: uuid.UUID, error: str) -> None:
        """Make a running job wait for its next try without counting this one. `error` says what it waits for.

        At least one try stays counted, which makes the job wait. A try whose batch was committed is not
        counted any more, and leaves nothing to wait for.
        """
        tries = Greatest(F("tries") - 1, 1)
        self.running().filter(id=id, tries__gt=0).update(tries=tries, error=error, updated_at=Now())

    def with_result(self) -> Self:
        """Filter the jobs whose result may be downloaded."""
        return self.exclude(result=None).filter(finished_at__gt=Now() - dt.timedelta(hours=RESULT_HOURS))

    def remove_old_results(self) -> None:
        """Remove the results that nobody may download any more."""
        old = Now() - dt.timedelta(hours=RESULT_HOURS)
        self.exclude(result=None).filter(finished_at__lte=old).update(result=None)

    def _open(self) -> Self:
        return self.filter(state__in=[BulkJob.State.RUNNING, BulkJob.State.FAILED])

    def _end(self, jobs: Self, state: BulkJob.State, **values: str) -> int:
        return jobs.update(state=state, finished_at=Now(), updated_at=Now(), **values)


class BulkJob(models.Model):
    """An action on chosen rows or on those of a filter, all frozen at the start, and its progress.

    The job visits each row once, in the order of the ids, from `position` (exclusive) to `last_id`. The
    transaction that changes the rows also writes `position` and the counts.

    A job on one person's data has no rows to visit, but the person's `address`. A killed one runs again.
    """

    class State(models.TextChoices):
        RUNNING = "running"
        DONE = "done"
        STOPPED = "stopped"
        FAILED = "failed"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    state = models.CharField(max_length=10, choices=State, default=State.RUNNING)

    action = models.CharField(max_length=50)  # a name in runtime.jobs.actions.ACTIONS
    #: {"ids": "…,…"}, the list's parameters: {"status": "failed"}, or {"person": the address's keyed hash}.
    filter = models.JSONField(default=dict)
    #: The person's address, until the job is done or stopped.
    address = models.TextField(default="", db_default="", blank=True)
    last_id = models.UUIDField(null=True)  # the greatest id that matched at the start, or null
    reason = models.CharField(max_length=200, default="", blank=True)
    # No foreign key in the database: creating one would lock the users' table.
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=models.SET_NULL,
        related_name="+",
        db_constraint=False,
        db_index=False,
    )
    username = models.CharField(max_length=150)  # as it was at the start; empty for a command's job
    sources = models.JSONField(null=True)  # the binding of the user at the start; null for all shops
    correlation_id = models.CharField(max_length=128, default="", blank=True)

    total = models.PositiveIntegerField(null=True)  # null: more rows than were counted
    position = models.UUIDField(null=True)
    done_count = models.PositiveIntegerField(default=0)
    refused_count = models.PositiveIntegerField(default=0)
    refusals = models.JSONField(default=dict)  # reasons for rows left alone: {"it is held": 3}
    refused_ids = models.JSONField(null=True)  # the first of them by reason: {"it is held": ["…", …]}
    result = models.BinaryField(null=True)  # an export, as gzip
    #: Counted when a batch begins, also for a process that is killed. A finished batch resets it to 0.
    tries = models.SmallIntegerField(db_default=0)
    error = models.TextField(default="", blank=True)  # of the last try, or why the job failed or was stopped

    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)
    finished_at = models.DateTimeField(null=True, editable=False)

    objects = BulkJobQuerySet.as_manager()

    purge_rules = (PurgeRule("finished_at", 90),)  # failed ones, too

    class Meta:
        db_table = "bulk_jobs"
        verbose_name = "background job"
        default_permissions = ("view",)
        indexes = [
            # the runner's next job, which is the one updated longest ago
            models.Index(fields=["updated_at"], name="bulk_jobs_running", condition=Q(state="running")),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=["running", "done", "stopped", "failed"]), name="bulk_jobs_state_known"
            ),
            models.CheckConstraint(
                condition=Q(state="running", finished_at__isnull=True)
                | (~Q(state="running") & Q(finished_at__isnull=False)),
                name="bulk_jobs_finished_has_its_time",
            ),
            models.CheckConstraint(
                condition=Q(address="") | Q(state__in=["running", "failed"]),
                name="bulk_jobs_ended_has_no_address",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.action} by {self.username}"

    @property
    def binding(self) -> Binding:
        """The shops whose rows the job may visit."""
        return Binding.of_words(self.sources)

    def as_progress(self) -> dict[str, Any]:
        """Return the progress page's values. `percent` is None if the total is unknown."""
        visited = self.done_count + self.refused_count
        percent = None
        if self.state == self.State.DONE:
            percent = 100
        elif self.total is not None:
            percent = 0 if not self.total else min(99, visited * 100 // self.total)
        left = None if self.total is None else max(0, self.total - visited)
        return {
            "state": self.state,
            "done": self.done_count,
            "refused": self.refused_count,
            "left": left,
            "percent": percent,
            "refusals": self.refusals,
            "error": self.error,
        }
