"""The history of a mail profile: an audit row for each change, from what to what, that can be put back."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet
from django.db.models.functions import Now

from notifications.models import MailProfile
from notifications.profile_form import as_document, form_of
from runtime.audit import Actor, record
from runtime.binding import UNBOUND, Binding
from runtime.models import AuditRow


class NotPutBack(Exception):
    """The former values are not allowed any more. The text says why."""


def record_profile(
    profile: MailProfile, *, before: Mapping[str, Any] | None, act: str, by: Actor, is_deleted: bool = False
) -> None:
    """Record a change of a profile, in the caller's transaction. `before` is its `as_document` of before.

    A change of the source concerns two shops, so the row is of neither.
    """
    after = {} if is_deleted else as_document(profile)
    was = before or {}
    names = sorted(was.keys() | after.keys())
    changes = {
        name: [was.get(name, ""), after.get(name, "")]
        for name in names
        if was.get(name, "") != after.get(name, "")
    }
    row = AuditRow(
        kind=AuditRow.Kind.PROFILE,
        act=act,
        source=profile.source if before is None or is_deleted or "source" not in changes else None,
        subject_type=profile._meta.label_lower,
        subject_id=str(profile.id),
        subject=str(profile),
        changes=changes,
    )
    record(row, by=by)


def history_of(profile: MailProfile) -> QuerySet[AuditRow]:
    """Return the changes of a profile, the newest first."""
    rows = AuditRow.objects.filter(subject_id=str(profile.id), kind=AuditRow.Kind.PROFILE)
    return rows.exclude(changes=None).order_by("-id")


def put_back(*, profile_id: uuid.UUID, row_id: uuid.UUID, by: Actor, shops: Binding = UNBOUND) -> MailProfile:
    """Give a profile the values that it had before a change, in the caller's transaction.

    The caller is bound to `shops`. Undo this change and all later ones, newest first. Raise
    `MailProfile.DoesNotExist`, `AuditRow.DoesNotExist` and `NotPutBack`.
    """
    profile = MailProfile.objects.select_for_update().get(id=profile_id)
    history = history_of(profile)
    chosen = shops.only(history).get(id=row_id)
    before = as_document(profile)
    document = dict(before)
    for row in history.filter(id__gte=chosen.id):
        document |= {name: was for name, (was, _) in (row.changes or {}).items()}
    try:
        form = form_of({name: value for name, value in document.items() if value}, instance=profile)
    except ValueError as error:
        raise NotPutBack(str(error)) from None
    form.is_logo_fetched = False  # it was, when these values were saved
    form.shops = shops
    if not form.is_valid():
        name, errors = next(iter(form.errors.items()))
        raise NotPutBack(f"{name}: {errors[0]}")
    form.instance.updated_at = Now()
    profile = form.save()
    act = f"Put back to before {chosen.at:%Y-%m-%d %H:%M:%S} UTC."
    record_profile(profile, before=before, act=act, by=by)
    return profile
