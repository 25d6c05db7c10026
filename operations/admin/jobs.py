"""Background jobs in the admin: the progress and results of each, and buttons to stop or restart it."""

from __future__ import annotations

import gzip
import uuid
from collections.abc import Iterable
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Q, QuerySet
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
    JsonResponse,
)
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.safestring import SafeString

from runtime.binding import Binding
from runtime.jobs.actions import ACTIONS, PersonAction, describe
from runtime.jobs.start import restart_job
from runtime.models import AuditRow, BulkJob
from web.admin.acts import record_act
from web.admin.base import TriageAdmin, pill, show_time
from web.admin.menu import MenuItem
from web.admin.page_limits import limit_page
from web.admin.rights import shops_of
from web.admin.tabs import StateRows, TabFilter

_PILLS = {"running": "processing", "done": "sent", "stopped": "discarded", "failed": "dead_lettered"}


class StateFilter(TabFilter):
    title, parameter_name = "state", "state"

    def choices_of(self) -> Iterable[str]:
        return BulkJob.State.values

    def counted(self, rows: QuerySet[Any], shops: Binding) -> Iterable[StateRows]:
        return [StateRows(BulkJob.State.values, rows.values_list("state"))]


@admin.register(BulkJob)
class BulkJobAdmin(TriageAdmin[BulkJob]):
    """Lists a user's own jobs, or all jobs for a user who has the permission to view them."""

    audit_kind = AuditRow.Kind.JOB
    is_named_in_audit = False
    menu = MenuItem(65, "Jobs")
    list_display = ["what", "status", "done", "left_alone", "by", "started"]
    list_display_links = ["what"]
    list_filter = [StateFilter]

    class Media:
        js = ["orderpost/job.js"]

    @admin.display(description="what")
    def what(self, job: BulkJob) -> str:
        return f"{_title(job)}: {_describe(job)}"

    @admin.display(description="state")
    def status(self, job: BulkJob) -> SafeString:
        return _pill(job)

    @admin.display(description="done")
    def done(self, job: BulkJob) -> int:
        return job.done_count

    @admin.display(description="left alone")
    def left_alone(self, job: BulkJob) -> int:
        return job.refused_count

    @admin.display(description="by")
    def by(self, job: BulkJob) -> str:
        return job.username or "a command"

    @admin.display(description="started")
    def started(self, job: BulkJob) -> SafeString | str:
        return show_time(job.created_at)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("<uuid:id>/progress/", view(self.progress_view), name="runtime_bulkjob_progress"),
            path("<uuid:id>/stop/", view(self.stop_view), name="runtime_bulkjob_stop"),
            path("<uuid:id>/result/", view(self.result_view), name="runtime_bulkjob_result"),
            path("<uuid:id>/restart/", view(self.restart_view), name="runtime_bulkjob_restart"),
            *super().get_urls(),
        ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[BulkJob]:
        return super().get_queryset(request).defer("address", "result")

    def in_shops(self, request: HttpRequest, rows: QuerySet[BulkJob]) -> QuerySet[BulkJob]:
        """Filter the jobs of the user, unless the user may see all. A bound one sees none over more shops."""
        if request.user.has_perm("runtime.view_bulkjob"):
            return rows
        own, shops = rows.filter(Q(user_id=request.user.pk)), shops_of(request)
        return own if shops.is_unbound else own.filter(sources__contained_by=shops.words)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("runtime.view_bulkjob") or _may_start_any(request)

    def has_view_permission(self, request: HttpRequest, obj: BulkJob | None = None) -> bool:
        own = _may_start_any(request) if obj is None else obj.user_id == request.user.pk
        return own or request.user.has_perm("runtime.view_bulkjob")

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Show a job's progress. job.js refreshes it."""
        job = self._job(request, object_id)
        context = {
            **self.admin_site.each_context(request),
            "title": f"{_title(job)}: {_describe(job)}",
            "opts": self.opts,
            "job": job,
            "progress": job.as_progress(),
            "pill": _pill(job),
            "started": show_time(job.created_at),
            "finished": show_time(job.finished_at),
            "may_stop": job.state in (job.State.RUNNING, job.State.FAILED) and _may_stop(request, job),
            "may_restart": job.state == job.State.FAILED and _may_start(request, job),
            "may_download": _results(request).filter(id=job.id).exists() and _may_start(request, job),
            "rows": _list_url(job),
            "left_alone": _left_alone(job),
            "rest": _rest(job),
            "media": self.media,
        }
        return TemplateResponse(request, "admin/runtime/bulkjob/job.html", context)

    def progress_view(self, request: HttpRequest, id: uuid.UUID) -> HttpResponse:
        """Answer with the progress as JSON, for job.js."""
        return JsonResponse(self._job(request, id).as_progress(), headers={"Cache-Control": "no-store"})

    def stop_view(self, request: HttpRequest, id: uuid.UUID) -> HttpResponse:
        """Stop a job. Rows that it has changed stay changed."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        job = self._job(request, id)
        if not _may_stop(request, job):
            raise PermissionDenied
        with transaction.atomic():
            if stopped := BulkJob.objects.stop(id=job.id):
                self.log_change(request, job, "Stopped.")
        if stopped:
            self.message_user(
                request, "Stopped. Rows that the job has changed stay changed. The others were not changed."
            )
        else:
            self.message_user(request, "The job had ended already.", messages.WARNING)
        return HttpResponseRedirect(reverse("admin:runtime_bulkjob_change", args=[job.id]))

    def restart_view(self, request: HttpRequest, id: uuid.UUID) -> HttpResponse:
        """Restart a failed job after its last complete batch. The user who started it stays its owner."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        job = self._job(request, id)
        if not _may_start(request, job):
            raise PermissionDenied
        with transaction.atomic():
            restarted = restart_job(id=job.id)
            if restarted:
                self.log_change(request, job, "Restarted.")
        if restarted:
            self.message_user(request, "Restarted. The job continues after its last complete batch.")
        else:
            self.message_user(
                request, "The job had not failed, or somebody has restarted it.", messages.WARNING
            )
        return HttpResponseRedirect(reverse("admin:runtime_bulkjob_change", args=[job.id]))

    @limit_page("download")
    def result_view(self, request: HttpRequest, id: uuid.UUID) -> HttpResponse:
        """Answer with the result of the user's own job as a file, and record the download."""
        job = self._job(request, id)
        if not _may_start(request, job):
            raise PermissionDenied
        result = _results(request).filter(id=job.id).values_list("result", flat=True).first()
        if result is None:
            raise Http404
        with transaction.atomic():
            kind, subject = AuditRow.Kind.EXPORT, f"background job {job.id}"
            record_act(request, kind=kind, act="Downloaded the result.", subject=subject, row=job)
        headers = {"Content-Disposition": 'attachment; filename="customer.json"'}
        return HttpResponse(gzip.decompress(result), "application/json", headers=headers)

    def _job(self, request: HttpRequest, id: str | uuid.UUID) -> BulkJob:
        job = self.get_object(request, str(id))
        if job is None:
            raise Http404
        if not self.has_view_permission(request, job):
            raise PermissionDenied
        return job


def _results(request: HttpRequest) -> QuerySet[BulkJob]:
    """Return the user's own jobs that have a result."""
    return BulkJob.objects.with_result().filter(Q(user_id=request.user.pk))


def _pill(job: BulkJob) -> SafeString:
    """Return the state as a pill. A newer release's state has no colour here."""
    return pill(_PILLS.get(job.state, job.state), job.state)


def _title(job: BulkJob) -> str:
    """Return the action's title, or its name if this release does not know the action."""
    return ACTIONS[job.action].title if job.action in ACTIONS else job.action


def _describe(job: BulkJob) -> str:
    return describe(ACTIONS[job.action], job.filter) if job.action in ACTIONS else ""


def _list_url(job: BulkJob) -> str:
    """Return the address of the list that starts such jobs, or an empty string for an unknown action."""
    if job.action not in ACTIONS:
        return ""
    options = ACTIONS[job.action].model._meta
    return reverse(f"admin:{options.app_label}_{options.model_name}_changelist")


def _left_alone(job: BulkJob) -> list[tuple[str, int, str, int]]:
    """Return each reason with its count, and the list of the first rows with their number."""
    page = _list_url(job)
    ids = job.refused_ids or {}
    return [
        (reason, count, f"{page}?ids={','.join(first)}" if first and page else "", len(first))
        for reason, count in sorted(job.refusals.items(), key=lambda item: -item[1])
        for first in [ids.get(reason, [])]
    ]


def _rest(job: BulkJob) -> str:
    """Return what remains to be done after the job, or an empty string."""
    action = ACTIONS.get(job.action)
    return action.rest(job.filter.get("person", "")) if isinstance(action, PersonAction) else ""


def _may_start_any(request: HttpRequest) -> bool:
    return any(request.user.has_perm(action.permission) for action in ACTIONS.values())


def _may_start(request: HttpRequest, job: BulkJob) -> bool:
    """Return whether the user may start a job with its action. Nobody may start an unknown action."""
    action = ACTIONS.get(job.action)
    return action is not None and request.user.has_perm(action.permission)


def _may_stop(request: HttpRequest, job: BulkJob) -> bool:
    return job.user_id == request.user.pk or _may_start(request, job)
