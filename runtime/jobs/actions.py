"""The actions of background jobs. Each app registers its own."""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from django.db import models
from django.db.models import QuerySet

from runtime.models import AuditRow, BulkJob


@dataclasses.dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of a batch: the audit row of each changed row, and the ids of the other rows by reason."""

    acts: Sequence[AuditRow]
    refusals: Mapping[str, Sequence[uuid.UUID]]


@dataclasses.dataclass(frozen=True, slots=True)
class BulkAction:
    """An action on many rows.

    `rows(filter, started_at)` returns the rows that a filter matched at that time. `change(ids)` changes rows
    in the caller's transaction, except those that it must not change.
    """

    name: str  # stored; must keep its meaning in later releases
    title: str
    model: type[models.Model]
    permission: str
    rows: Callable[[Mapping[str, str], dt.datetime | None], QuerySet[Any]]
    change: Callable[[Sequence[uuid.UUID]], BatchResult]
    describe: Callable[[Mapping[str, str]], str]


def group_refusals(refusals: Iterable[tuple[uuid.UUID, str]]) -> dict[str, list[uuid.UUID]]:
    """Return ids by their reason."""
    groups: dict[str, list[uuid.UUID]] = {}
    for id, reason in refusals:
        groups.setdefault(reason, []).append(id)
    return groups


#: Reports a finished step: report(step, **facts). The fact `rows` counts as done.
Report = Callable[..., None]


@dataclasses.dataclass(frozen=True, slots=True)
class PersonAction:
    """An action on one person's data.

    `run(job, report)` may be killed at any point and run again. It raises `Waiting`, `JobRefused` or
    `Stopped`. `rest(person)` says what remains to be done after the job, for its page.
    """

    name: str  # stored; must keep its meaning in later releases
    title: str
    model: type[models.Model]
    permission: str
    run: Callable[[BulkJob, Report], None]
    rest: Callable[[str], str] = lambda _: ""

    def describe(self, params: Mapping[str, str]) -> str:
        return f"person {params['person'][:12]}"


class Waiting(Exception):
    """A job cannot run now. It is tried again, and the message may say what it waits for."""


class JobRefused(Exception):
    """A job must not run. It is stopped, and the message says why."""


class Stopped(Exception):
    """Somebody has stopped the job, or another process has ended it."""


#: Every action by its name. Each app registers its actions in its bulk_actions.py.
ACTIONS: dict[str, BulkAction | PersonAction] = {}


def register(action: BulkAction | PersonAction) -> None:
    ACTIONS[action.name] = action


def row_action(*, name: str) -> BulkAction:
    """Return the action on rows that has the name."""
    action = ACTIONS[name]
    assert isinstance(action, BulkAction)
    return action


def rows_of(
    action: BulkAction, filter: Mapping[str, str], *, started_at: dt.datetime | None = None
) -> QuerySet[Any]:
    """Return the rows that a filter matched at that time. Its `ids` choose some by their ids."""
    rows = action.rows(filter, started_at)
    return rows.filter(pk__in=ids.split(",")) if (ids := filter.get("ids")) else rows


def describe(action: BulkAction | PersonAction, filter: Mapping[str, str]) -> str:
    """Return a job's rows in words."""
    if ids := filter.get("ids"):
        return f"{ids.count(',') + 1:,} chosen"
    return action.describe(filter)
