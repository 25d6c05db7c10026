"""Write audit rows for downloads, previews, exports and erasures, which Django does not log.

A row has only fixed words, codes, ids and keyed hashes (`runtime.personal_data`), and no text that a user
typed but a reason without an address, after ". ".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from django.contrib import admin
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.views.main import ORDER_VAR, PAGE_VAR, SEARCH_VAR, ChangeList
from django.contrib.contenttypes.models import ContentType
from django.db.models import Model
from django.http import HttpRequest

from runtime.database.ids import parse_uuid
from runtime.database.periods import read_time
from runtime.personal_data import address_hash


def record_act(
    request: HttpRequest, *, model: type[Model], action: str, subject: str, id: object = None, **codes: object
) -> None:
    """Write one row. `action` and `subject` must be fixed words. Add `codes` as `name=value`."""
    words = [action, *(f"{name}={value}" for name, value in codes.items())]
    LogEntry.objects.create(
        user_id=cast(int, request.user.pk),  # the admin has no anonymous users
        content_type=ContentType.objects.get_for_model(model),
        object_id=None if id is None else str(id),
        object_repr=subject,
        action_flag=CHANGE,
        change_message=" ".join(words),
    )


def record_download(request: HttpRequest, changelist: ChangeList) -> None:
    """Record that a user downloaded a list, and with which filters."""
    record_act(
        request,
        model=changelist.model,
        action="Downloaded as CSV.",
        subject=f"list of {changelist.opts.label_lower}",
        **_codes_of(request, changelist),
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
