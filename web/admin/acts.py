"""Record what users do in the admin: a row of the audit for each act (`runtime.audit`)."""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.admin.views.main import ORDER_VAR, PAGE_VAR, SEARCH_VAR, ChangeList
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.http import urlencode

from runtime.audit import record
from runtime.database.ids import parse_uuid
from runtime.database.periods import read_time
from runtime.models import AuditRow
from runtime.personal_data import address_hash
from web.actors import user_actor

Row = TypeVar("Row", bound=Model)

#: The permission that shows the audit. It is named after Django's log, which the audit replaces.
MAY_READ = "admin.view_logentry"


def record_act(
    request: HttpRequest,
    *,
    kind: AuditRow.Kind,
    act: str,
    subject: str,
    row: Model | None = None,
    order_id: uuid.UUID | None = None,
    source: str | None = None,
    changes: dict[str, list[Any]] | None = None,
    reason: str = "",
    codes: Mapping[str, object] | None = None,
) -> None:
    """Record one act, in the caller's transaction. `act` and `subject` are our own words.

    `row` is the row that the act is about. `codes` are added as `name=value`.
    """
    words = [act, *(f"{name}={value}" for name, value in (codes or {}).items())]
    audit_row = AuditRow(
        kind=kind,
        source=source,
        order_id=order_id,
        subject_type=row._meta.label_lower if row else "",
        subject_id=str(row.pk) if row else "",
        subject=subject,
        act=" ".join(words),
        changes=changes,
        reason=reason,
    )
    record(audit_row, by=user_actor(request))


class AuditedPage(admin.ModelAdmin[Row]):
    """Writes what Django logs of a page into the audit. The site adds it to each page (operations.site)."""

    #: The kind of the page's acts.
    audit_kind = AuditRow.Kind.SETUP
    #: Whether the audit names a row as `str(row)`, which must have no data of a customer, or by its id.
    is_named_in_audit = True

    def audited(self, row: Any) -> dict[str, Any]:
        """Return the `order_id` and the `source` of a row, as `record_act` takes them."""
        return {}

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        self._log(request, obj, _words(message))

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        self._log(request, obj, _words(message))

    def log_deletions(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        record(*(self._audit_row(row, "Deleted.") for row in queryset), by=user_actor(request))

    def _log(self, request: HttpRequest, row: Any, act: str) -> None:
        record(self._audit_row(row, act), by=user_actor(request))

    def _audit_row(self, row: Any, act: str) -> AuditRow:
        return AuditRow(
            kind=self.audit_kind,
            act=act,
            subject_type=row._meta.label_lower,
            subject_id=str(row.pk),
            subject=str(row) if self.is_named_in_audit else f"{self.opts.verbose_name} {row.pk}",
            **self.audited(row),
        )

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Lead to the audit of one row, for a user who may read the audit."""
        if not request.user.has_perm(MAY_READ):
            raise PermissionDenied
        page = reverse("admin:runtime_auditrow_changelist")
        return HttpResponseRedirect(f"{page}?{urlencode({SEARCH_VAR: object_id})}")


class LibraryPage(AuditedPage[Row]):
    """Also records what a user does with rows of the list. Django logs only that they were deleted."""

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        actions: dict[str, Any] = super().get_actions(request)
        return {
            name: (func if name == "delete_selected" else _recorded(func, str(said)), name, said)
            for name, (func, name, said) in actions.items()
        }


def _recorded(action: Callable[..., Any], said: str) -> Callable[..., Any]:
    @functools.wraps(action)
    def recorded(page: AuditedPage[Any], request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        rows = list(queryset)  # the action may change which rows the list's filters find
        response = action(page, request, queryset)
        record(*(page._audit_row(row, f"Chosen: {said}.") for row in rows), by=user_actor(request))
        return response

    return recorded


def with_audit(page: type[admin.ModelAdmin[Any]]) -> type[admin.ModelAdmin[Any]]:
    """Return the page's class with `LibraryPage` before Django's own methods, unless it is one of ours."""
    if issubclass(page, AuditedPage):
        return page
    return type(page.__name__, (page, LibraryPage), {"__module__": page.__module__})


def _words(message: Any) -> str:
    """Return the message of a form in words, as Django's log does."""
    if isinstance(message, str):
        return message
    return LogEntry(change_message=json.dumps(message)).get_change_message()


def record_download(request: HttpRequest, changelist: ChangeList) -> None:
    """Record that a user downloaded a list, and with which filters."""
    with transaction.atomic():
        record_act(
            request,
            kind=AuditRow.Kind.DOWNLOAD,
            act="Downloaded as CSV.",
            subject=f"list of {changelist.opts.label_lower}",
            codes=_codes_of(request, changelist),
        )


def _codes_of(request: HttpRequest, changelist: ChangeList) -> dict[str, str]:
    choices = set(_choices(changelist.filter_specs, changelist.model_admin))
    return {
        name: ",".join(_code(value, choices=choices if name != SEARCH_VAR else ()) for value in values)
        for name, values in sorted(request.GET.lists())
        if name not in (PAGE_VAR, ORDER_VAR) and any(values)
    }


def _choices(filters: Iterable[Any], model_admin: Any) -> Iterable[str]:
    """Yield the filters' choices for an empty request. None of them comes from the address."""
    blank = HttpRequest()
    for list_filter in filters:
        if isinstance(list_filter, admin.SimpleListFilter):
            yield from (str(value) for value, _ in list_filter.lookups(blank, model_admin) or ())


def _code(value: str, *, choices: Iterable[str]) -> str:
    if value in choices or parse_uuid(value) or read_time(value):
        return value
    return f"hash:{address_hash(value)}"
